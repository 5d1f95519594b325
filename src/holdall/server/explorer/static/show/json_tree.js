// A JSON value as text that folds. A click on a value offers it as a filter.

import { showJson, showName } from "../data/names.js";
import { h, icon } from "./dom.js";
import { count } from "./times.js";

const MOST_CHILDREN = 200; // of one object or list, until more is asked for
const OPEN_DEPTH = 3;
const MOST_CHARACTERS = 10_000; // of one text, until more is asked for: a browser needs seconds to lay out millions
const OPERATOR = /^\$[A-Za-z]+$/; // a filter would not take it for the name of a field

/** Show a value. `pick(path, value)` is the address to which a text, a number or a flag leads. */
export function jsonTree(value, pick) {
  return h("div", { class: "json" }, node(value, [], pick, 0, true));
}

function node(value, path, pick, depth, isLast) {
  const comma = isLast ? "" : ",";
  if (!isContainer(value)) return h("div", { class: "json-line" }, name(path), scalar(value, path, pick), comma);
  const isList = Array.isArray(value);
  const entries = isList ? value.map((item, index) => [index, item]) : Object.entries(value);
  const [open, close] = isList ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return h("div", { class: "json-line" }, name(path), open + close + comma);
  const inside = h("div", { class: "json-inside" });
  let isOpen = depth < OPEN_DEPTH && entries.length <= MOST_CHILDREN;
  const summary = h("span", { class: "json-summary" }, ` ${entries.length} ${isList ? "values" : "fields"} ${close}${comma}`);
  const end = h("div", { class: "json-line" }, close + comma);
  const toggle = h("button", {
    type: "button",
    class: "fold",
    "aria-label": path.length ? `Fold ${path.at(-1)}` : "Fold the value",
    onclick: () => setOpen(!isOpen),
  }, icon("chevron"));
  const setOpen = (wanted) => {
    isOpen = wanted;
    if (isOpen && !inside.firstChild) addChildren(0);
    toggle.setAttribute("aria-expanded", isOpen);
    inside.hidden = end.hidden = !isOpen;
    summary.hidden = isOpen;
  };
  const addChildren = (start) => {
    const some = entries.slice(start, start + MOST_CHILDREN);
    for (const [index, [field, item]] of some.entries()) {
      inside.append(node(item, [...path, field], pick, depth + 1, start + index === entries.length - 1));
    }
    const left = entries.length - start - some.length;
    if (left > 0) {
      const more = h("button", { type: "button", class: "link", onclick: () => (more.remove(), addChildren(start + MOST_CHILDREN)) }, `Show more (${left} left)`);
      inside.append(more);
    }
  };
  const line = h("div", { class: "json-line" }, toggle, name(path), open, summary);
  setOpen(isOpen);
  return h("div", { class: "json-node" }, line, inside, end);
}

const isRaw = (value) => typeof JSON.isRawJSON === "function" && JSON.isRawJSON(value);
const isContainer = (value) => value !== null && typeof value === "object" && !isRaw(value);

function name(path) {
  const last = path.at(-1);
  return typeof last === "string" && h("span", { class: "json-name" }, showJson(last), h("span", { class: "json-colon" }, ": "));
}

/** A text of which more is shown on demand. */
function longText(text, className) {
  const shown = h("span", { class: className }, text.slice(0, MOST_CHARACTERS));
  let end = MOST_CHARACTERS;
  if (text.length <= end) return shown;
  const showMore = () => {
    shown.append(text.slice(end, end + MOST_CHARACTERS));
    end += MOST_CHARACTERS;
    more.textContent = label();
    if (end >= text.length) more.remove();
  };
  const label = () => `Show more (${count(text.length - end)} characters left)`;
  const more = h("button", { type: "button", class: "link", onclick: showMore }, label());
  return [shown, " ", more];
}

function scalar(value, path, pick) {
  const kind = value === null ? "null" : isRaw(value) ? "number" : typeof value;
  const text = showJson(value);
  const isPickable = pick && !path.some((part) => typeof part === "number") && !OPERATOR.test(path.join(".")) && text.length < 200;
  if (!isPickable) return longText(text, `json-${kind}`);
  const label = `Find entries where ${showName(path.join("."))} is ${text}`;
  return h("a", { class: `pick json-${kind}`, title: label, href: pick(path, value) }, text);
}
