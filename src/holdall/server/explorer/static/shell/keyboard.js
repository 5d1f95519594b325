// Keys that work on the whole page, and the overlay that lists all keys.

import { h } from "../show/dom.js";
import { dialog } from "./dialogs.js";
import { go, state } from "./state.js";
import { toggleTheme } from "./theme.js";

const KEYS = [
  ["/", "Search"],
  ["↑ ↓ or j k", "Move in the table or the tree"],
  ["→ ←", "Open and close a namespace"],
  ["Enter", "Open what is marked"],
  ["Esc", "Close the entry"],
  ["e", "Edit the entry"],
  ["h", "History of the entry"],
  ["n", "New entry here"],
  ["p", "Pause or continue the live changes"],
  ["1 – 5", "Browse, Live, History, Threads, Operation"],
  ["t", "Light or dark"],
  ["?", "This list"],
];
const VIEWS = ["browse", "live", "history", "threads", "operation"];

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

export function startKeyboard(frame) {
  const keys = {
    "/": () => frame.searchBox.focus(),
    "?": showKeys,
    t: toggleTheme,
    e: () => frame.detail?.edit(),
    h: () => frame.detail?.toggleHistory(),
    n: () => frame.current?.create?.(),
    p: () => frame.current?.togglePause?.(),
    Escape: () => close(frame),
  };
  VIEWS.forEach((view, index) => {
    keys[index + 1] = () => go({ view, entry: "", q: "" });
  });
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      if (event.key === "ArrowDown" && event.target === frame.searchBox) frame.current?.focus?.();
      return;
    }
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function close(frame) {
  if (!state.entry || frame.detail?.isEditing) return;
  go({ entry: "", tab: "" });
  frame.current?.focus?.();
}

export function showKeys() {
  return dialog("Keyboard", (done) => [
    h("dl", { class: "keys" }, KEYS.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))),
    h("div", { class: "dialog-actions" }, h("button", { type: "button", class: "primary", onclick: () => done() }, "Close")),
  ]);
}
