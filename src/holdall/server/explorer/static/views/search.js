// Search as you type, over entries and files, by text, by meaning, or both.

import { parseFilter, showFilter } from "../browse/filter_chips.js";
import { search } from "../data/api.js";
import { encodeAddress, isSame, showName, showNamespace, showText } from "../data/names.js";
import { session } from "../shell/session.js";
import { go, state } from "../shell/state.js";
import { button, emptyState, fill, h, icon } from "../show/dom.js";
import { highlight } from "../show/highlight.js";
import { age, took } from "../show/times.js";

const MODES = [["lexical", "Text"], ["semantic", "Meaning"], ["hybrid", "Both"]];
const PAGE = 30;
const PREVIEW = 320;

export class View {
  constructor() {
    this.summary = h("span", { class: "count", role: "status" });
    this.actions = h("div", { class: "actions" });
    this.chips = h("div", { class: "chips" });
    this.results = h("ol", { class: "results" });
    this.body = h("div", { class: "view-body scroll" }, this.results);
    this.element = h("div", { class: "view" }, h("div", { class: "view-head" }, h("h2", {}, "Search"), this.summary, this.actions), this.chips, this.body);
    this.results.addEventListener("keydown", (event) => this.#onKey(event));
    this.abort = null;
  }

  async show(before) {
    const isSameSearch = before && ["q", "mode", "filter"].every((name) => before[name] === state[name]) && isSame(before.ns, state.ns);
    if (isSameSearch) return this.#mark();
    this.#drawHead();
    return this.#run();
  }

  #drawHead() {
    const chosen = session.features.embeds ? state.mode || "hybrid" : "lexical"; // an address may be of another store
    fill(
      this.actions,
      state.ns.length > 0 && h("span", { class: "chip", title: showNamespace(state.ns) }, h("span", {}, `in ${showNamespace(state.ns)}`), h("button", { type: "button", "aria-label": "Search everywhere", onclick: () => go({ ns: [] }) }, "×")),
      session.features.embeds &&
        h("div", { class: "switch", role: "group", "aria-label": "Search by" }, MODES.map(([mode, name]) => h("button", { type: "button", "aria-pressed": mode === chosen, onclick: () => go({ mode }) }, name))),
    );
    showFilter(this.chips);
    this.mode = chosen;
  }

  async #run() {
    this.abort?.abort();
    this.abort = new AbortController();
    const { signal } = this.abort;
    const body = { namespace: state.ns, query: state.q, limit: PAGE, preview: PREVIEW, highlight: true, mode: this.mode };
    const filter = parseFilter();
    if (filter) body.filter = filter;
    const page = await search(body, signal);
    if (signal.aborted) return;
    const number = `${page.items.length}${page.next ? "+" : ""}`;
    this.summary.textContent = `${number} found in ${took(page.seconds)}`;
    this.body.scrollTop = 0;
    if (page.items.length) fill(this.results, this.#rows(page.items), this.#more(body, page.next));
    else fill(this.results, h("li", { class: "no-result" }, this.#explainEmpty()));
    this.#scale();
  }

  #explainEmpty() {
    if (!session.features.full_text) return emptyState("This store keeps no text index.", "Open it with full_text=True to search it.");
    return emptyState("Nothing found.", state.ns.length ? "Try other words, or search everywhere." : "Try fewer or other words. Words match in any order; “words in quotes” match as a phrase.");
  }

  #rows(items) {
    const best = Math.max(...items.map((item) => item.score ?? 0));
    return items.map((item) => {
      const target = encodeAddress(item.namespace, item.key);
      const score = item.score === null ? null : h("span", { class: "score", title: `Score ${item.score}` }, h("span", { class: "score-bar" }, h("span", { dataset: { share: String(item.score / best) } })), item.score.toPrecision(3));
      return h(
        "li",
        {},
        h(
          "button",
          { type: "button", class: "result", dataset: { address: target }, onclick: () => go({ entry: target, pane: "" }) },
          h("span", { class: "result-head" }, icon(item.is_file ? "file" : "item"), h("span", { class: "result-key" }, highlight(showName(item.key), state.q)), h("span", { class: "result-place" }, showNamespace(item.namespace)), score),
          this.#excerpts(item),
          h("span", { class: "hint" }, `changed ${age(item.updated_at)}`),
        ),
      );
    });
  }

  /** The parts of the entry that match, or its beginning. */
  #excerpts(item) {
    if (!item.highlights?.length) return h("span", { class: "result-text" }, highlight(showText(item.preview), state.q), item.is_cut && "…");
    return item.highlights.map(({ path, parts }) =>
      h("span", { class: "result-text" }, h("span", { class: "json-name" }, `${showName(path)}: `), parts.map((part) => (part.match ? h("mark", {}, showText(part.text)) : showText(part.text)))),
    );
  }

  #more(body, cursor) {
    if (!cursor) return null;
    const more = button("Show more", null, async () => {
      const page = await search({ ...body, cursor });
      more.parentElement.replaceWith(...this.#rows(page.items), ...[this.#more(body, page.next)].filter(Boolean));
      this.#scale();
    });
    return h("li", { class: "more" }, more);
  }

  #scale() {
    for (const bar of this.results.querySelectorAll("[data-share]")) bar.style.width = `${bar.dataset.share * 100}%`;
    this.#mark();
  }

  #mark() {
    for (const result of this.results.querySelectorAll(".result")) result.classList.toggle("is-selected", result.dataset.address === state.entry);
  }

  #onKey(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...this.results.querySelectorAll(".result")];
    all[all.indexOf(document.activeElement) + step]?.focus();
  }

  focus() {
    this.results.querySelector(".result")?.focus();
  }
}
