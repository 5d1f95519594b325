// An item: its value as JSON that folds.

import { addressOfCondition } from "../browse/filter_chips.js";
import { toast } from "../shell/toasts.js";
import { button, fill, h } from "../show/dom.js";
import { jsonTree } from "../show/json_tree.js";

export function showItem(element, { value }) {
  const copy = async () => {
    await navigator.clipboard.writeText(JSON.stringify(value, null, 2));
    toast("The JSON is copied.");
  };
  fill(
    element,
    h("div", { class: "content-tools" }, h("span", { class: "hint" }, "Click a value to find entries that share it."), button("Copy JSON", "copy", copy, { bare: true, class: "bare" })),
    jsonTree(value, addressOfCondition),
  );
}
