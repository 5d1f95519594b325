// Short messages at the bottom of the page, and dialogs.

import { fill, h } from "../show/dom.js";

const LIFETIME = 8000; // milliseconds
let region;

export function startToasts() {
  region = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
  document.body.append(region);
}

/** Show a message; with `undo`, a button that calls it. */
export function toast(text, { undo, kind = "done" } = {}) {
  const close = () => box.remove();
  const undoIt = async () => {
    close();
    try {
      await undo();
    } catch (error) {
      toast(`It could not be undone. ${error.message}`, { kind: "error" });
    }
  };
  const box = h(
    "div",
    { class: `toast ${kind}` },
    h("span", {}, text),
    undo && h("button", { type: "button", onclick: undoIt }, "Undo"),
    h("button", { type: "button", class: "bare", "aria-label": "Dismiss", onclick: close }, "×"),
  );
  region.append(box);
  while (region.children.length > 3) region.firstChild.remove();
  setTimeout(close, kind === "error" ? LIFETIME * 2 : LIFETIME);
}

/** Run something that may fail, and show why it did. */
export async function attempt(run) {
  try {
    return await run();
  } catch (error) {
    if (error.name !== "AbortError" && error.status !== 401) toast(error.message, { kind: "error" });
    return undefined;
  }
}

/** Show a dialog. `build(close)` returns its content; what is passed to `close` is the result. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const before = document.activeElement;
    let result;
    const close = (value) => {
      result = value;
      box.close();
    };
    const box = h("dialog", { "aria-labelledby": "dialog-title" });
    fill(box, h("h2", { id: "dialog-title" }, title), build(close));
    box.addEventListener("close", () => {
      box.remove();
      if (before?.isConnected) before.focus();
      resolve(result);
    });
    document.body.append(box);
    box.showModal();
  });
}

/** Ask before something is done that cannot be taken back easily. */
export function confirm(title, text, action) {
  return dialog(title, (close) => [
    h("p", {}, text),
    h(
      "div",
      { class: "dialog-actions" },
      h("button", { type: "button", onclick: () => close(false) }, "Cancel"),
      h("button", { type: "button", class: "danger", onclick: () => close(true) }, action),
    ),
  ]);
}

/** Ask for a text. */
export function ask(title, label, value, action) {
  return dialog(title, (close) => {
    const field = h("input", { id: "dialog-field", value, spellcheck: "false", required: true, autocomplete: "off" });
    const submit = (event) => {
      event.preventDefault();
      close(field.value);
    };
    return h(
      "form",
      { onsubmit: submit },
      h("label", { for: "dialog-field" }, label),
      field,
      h(
        "div",
        { class: "dialog-actions" },
        h("button", { type: "button", onclick: () => close(undefined) }, "Cancel"),
        h("button", { class: "primary" }, action),
      ),
    );
  });
}
