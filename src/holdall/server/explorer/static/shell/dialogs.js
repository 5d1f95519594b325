// Dialogs: to confirm, to ask for a text, and others.

import { fill, h } from "../show/dom.js";

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
