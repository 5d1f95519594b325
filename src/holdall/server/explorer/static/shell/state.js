// What the page shows, kept in the part of the address after "#", so that a view can be sent to somebody.
// It is never sent to a server: names of entries are in no log.

import { decodeNamespace, encodeNamespace, isBelow } from "../data/names.js";
import { session } from "./session.js";

const VIEWS = ["browse", "search", "live", "history", "threads", "operation"];
const TEXTS = ["entry", "tab", "folder", "q", "mode", "filter", "at", "order", "thread", "step", "since", "pane", "line", "list", "version"];
const CHOICES = { mode: ["lexical", "semantic", "hybrid"], order: ["newest"], list: ["history"], tab: ["history"] };
const FOLDER = /^\/(?:(?!\.\.?\/)[^/]+\/)*$/; // an absolute path without "." and ".."

/**
 * The state: `view`, `ns` (a list of labels), and the texts above. Change it with `go`. Names are relative to the scope
 * of the token. An address has that scope, so that it leads to the same entry with a token of another scope.
 */
export const state = { view: "browse", ns: [] };
const listeners = new Set();

/** Call a function with what the state was, after each change of it. */
export function onState(listener) {
  listeners.add(listener);
}

function read() {
  const [view, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const given = new URLSearchParams(query);
  const found = { view: VIEWS.includes(view) ? view : "browse" };
  for (const name of TEXTS) found[name] = readText(name, given.get(name) ?? "");
  const scope = readLabels(given.get("scope"));
  const [ns, entry] = ["ns", "entry"].map((name) => translate(scope, readLabels(given.get(name))));
  return Object.assign(found, { ns: ns ?? [], entry: encodeNamespace(entry ?? []), isOutside: ns === null || entry === null });
}

/** Labels that are relative to a scope, relative to this session's scope; null if they are outside of it. */
function translate(scope, labels) {
  const whole = [...scope, ...labels];
  if (!labels.length || isBelow(session.scope, whole)) return [];
  return isBelow(whole, session.scope) ? whole.slice(session.scope.length) : null;
}

/** The labels of a namespace; none if somebody has cut the address. */
function readLabels(text) {
  try {
    return decodeNamespace(text ?? "");
  } catch {
    return [];
  }
}

/** A text of the address, if it is one that the page could have written, else "": the address may have been cut. */
function readText(name, text) {
  try {
    if (name === "filter" && text && !isObject(JSON.parse(text))) return "";
    if (name === "since" && Number.isNaN(Date.parse(text))) return "";
    if (name === "folder" && !FOLDER.test(text)) return "";
    if (name in CHOICES && !CHOICES[name].includes(text)) return "";
  } catch {
    return "";
  }
  return text;
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The address of a state: the present one with changes. */
export function addressOf(changes) {
  const wanted = { ...state, ...changes };
  const query = new URLSearchParams();
  if (session.scope.length) query.set("scope", encodeNamespace(session.scope));
  if (wanted.ns.length) query.set("ns", encodeNamespace(wanted.ns));
  for (const name of TEXTS) if (wanted[name]) query.set(name, wanted[name]);
  const text = query.toString();
  return `#/${wanted.view}${text ? `?${text}` : ""}`;
}

/** Change the state; `replace` leaves no step for the button "back". */
export function go(changes, { replace = false } = {}) {
  const wanted = addressOf(changes);
  if (wanted === addressOf({})) return;
  history[replace ? "replaceState" : "pushState"](null, "", wanted);
  apply();
}

function apply() {
  const before = { ...state };
  Object.assign(state, read());
  for (const listener of listeners) listener(before);
}

export function startState() {
  addEventListener("popstate", apply);
  addEventListener("hashchange", () => location.hash !== addressOf({}) && apply());
  Object.assign(state, read());
}
