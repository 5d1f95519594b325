// What the page shows, kept in the part of the address after "#", so that a view can be sent to somebody.
// It is never sent to a server: names of entries are in no log.

import { decodeNamespace, encodeNamespace } from "../data/names.js";

const VIEWS = ["browse", "search", "live", "history", "threads", "operation"];
const TEXTS = ["entry", "tab", "folder", "q", "mode", "filter", "at", "order", "thread", "step", "since", "pane", "line"];

/** The state: `view`, `ns` (a list of labels), and the texts above. Change it with `go`. */
export const state = { view: "browse", ns: [] };
const listeners = new Set();

/** Call a function with what the state was, after each change of it. */
export function onState(listener) {
  listeners.add(listener);
}

function read() {
  const [view, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const given = new URLSearchParams(query);
  const found = { view: VIEWS.includes(view) ? view : "browse", ns: [] };
  try {
    found.ns = decodeNamespace(given.get("ns") ?? "");
  } catch {
    // somebody has cut the address: the whole store is shown
  }
  for (const name of TEXTS) found[name] = given.get(name) ?? "";
  return found;
}

/** The address of a state: the present one with changes. */
export function addressOf(changes) {
  const wanted = { ...state, ...changes };
  const query = new URLSearchParams();
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
