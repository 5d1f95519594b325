// The dialog that makes a new entry.

import { putEntry } from "../data/api.js";
import { decodeNamespace, encodeAddress, encodeNamespace, showName } from "../data/names.js";
import { dialog } from "../shell/dialogs.js";
import { go } from "../shell/state.js";
import { toast } from "../shell/toasts.js";
import { h } from "../show/dom.js";
import { findProblem } from "./editor.js";

export async function createEntry(namespace) {
  const made = await dialog("New entry", (close) => {
    const place = h("input", { id: "new-place", value: encodeNamespace(namespace), required: true, spellcheck: "false", autocomplete: "off", placeholder: "users/ada" });
    const key = h("input", { id: "new-key", required: true, spellcheck: "false", autocomplete: "off" });
    const text = h("textarea", { id: "new-value", class: "editor short", spellcheck: "false", value: '{\n  "text": ""\n}' });
    const note = h("p", { class: "field-error", role: "alert" });
    const submit = async (event) => {
      event.preventDefault();
      note.textContent = findProblem(text.value);
      if (note.textContent) return;
      try {
        const labels = decodeNamespace(place.value.trim().replace(/^\/+|\/+$/g, ""));
        const entry = await putEntry(labels, key.value, text.value, null);
        close({ ...entry, namespace: labels });
      } catch (error) {
        note.textContent = error.status === 412 ? "There is an entry with this key already." : error.message;
      }
    };
    return h(
      "form",
      { onsubmit: submit },
      h("label", { for: "new-place" }, "Namespace (labels, with / between them)"),
      place,
      h("label", { for: "new-key" }, "Key"),
      key,
      h("label", { for: "new-value" }, "Value (a JSON object)"),
      text,
      note,
      h("div", { class: "dialog-actions" }, h("button", { type: "button", onclick: () => close() }, "Cancel"), h("button", { class: "primary" }, "Create")),
    );
  });
  if (!made) return;
  toast(`${showName(made.key)} is stored.`);
  go({ view: "browse", ns: made.namespace, entry: encodeAddress(made.namespace, made.key), folder: "", filter: "" });
}
