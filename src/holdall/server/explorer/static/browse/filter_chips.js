// The filter of a list: made by clicks on values, shown as chips, each of which can be removed.

import { parseExactly } from "../data/api.js";
import { showJson, showName } from "../data/names.js";
import { addressOf, go, state } from "../shell/state.js";
import { fill, h } from "../show/dom.js";

/** The filter that the address has, or null. */
export function parseFilter() {
  return state.filter ? parseExactly(state.filter) : null;
}

/** The address of the list with one more condition: a field has a value. */
export function addressOfCondition(path, value) {
  const filter = JSON.stringify({ ...parseFilter(), [path.join(".")]: value });
  const view = state.view === "search" ? "search" : "browse";
  return addressOf({ filter, view, order: "newest", folder: "", entry: "", pane: "main" });
}

/** Show the conditions in an element. */
export function showFilter(element) {
  const filter = parseFilter() ?? {};
  const remove = (name) => {
    const { [name]: _removed, ...rest } = filter;
    go({ filter: Object.keys(rest).length ? JSON.stringify(rest) : "" });
  };
  const chips = Object.entries(filter).map(([name, value]) =>
    h(
      "span",
      { class: "chip", title: `${showName(name)} = ${showJson(value)}` },
      h("span", {}, `${showName(name)} = ${showJson(value)}`),
      h("button", { type: "button", "aria-label": `Remove the filter ${name}`, onclick: () => remove(name) }, "×"),
    ),
  );
  element.hidden = !chips.length;
  fill(element, chips);
}
