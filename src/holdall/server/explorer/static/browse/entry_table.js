// The table of entries: key, beginning of the value, version, age and time to live.

import { encodeAddress, isSame, showName, showNamespace, showText } from "../data/names.js";
import { Rows } from "../data/rows.js";
import { go, state } from "../shell/state.js";
import { attempt } from "../shell/toasts.js";
import { emptyState, h, icon } from "../show/dom.js";
import { age, moment, until } from "../show/times.js";
import { VirtualList } from "./virtual_list.js";

const ROW_HEIGHT = 36;
const COLUMNS = ["Key", "Value", "Version", "Changed", "Expires"];

export class EntryTable {
  constructor() {
    this.body = h("div", { class: "grid-body", role: "rowgroup" });
    this.heads = COLUMNS.map((name) => h("div", { role: "columnheader", class: `cell ${name.toLowerCase()}` }, name));
    const head = h("div", { class: "grid-head", role: "rowgroup" }, h("div", { role: "row", class: "grid-row" }, this.heads));
    this.grid = h("div", { class: "grid", role: "grid", "aria-label": "Entries", tabindex: "0" }, head, this.body);
    this.empty = h("div", { class: "grid-empty" });
    this.element = h("div", { class: "grid-frame" }, this.grid, this.empty);
    this.list = new VirtualList({
      viewport: this.grid,
      canvas: this.body,
      height: ROW_HEIGHT,
      build: () => this.#build(),
      show: (row, index) => this.#show(row, index),
      onRange: (_first, end) => this.rows && attempt(() => this.rows.load(Math.min(end, this.rows.total))),
    });
    this.rows = null;
    this.active = 0;
    this.isRenewing = false;
    this.grid.addEventListener("keydown", (event) => this.#onKey(event));
    this.body.addEventListener("click", (event) => this.#onClick(event));
  }

  /** Show the entries of a namespace. */
  async open(namespace, options) {
    const rows = new Rows(namespace, options, () => this.rows === rows && this.#onLoad());
    const isSamePlace = this.rows && isSame(this.rows.namespace, namespace);
    this.opening?.close();
    this.opening = rows;
    await rows.start();
    if (this.opening !== rows) return;
    this.opening = null;
    this.rows?.close();
    this.rows = rows;
    if (!isSamePlace) {
      this.grid.scrollTop = 0;
      this.active = 0;
    }
    this.heads.forEach((head, index) => {
      const sorted = { 0: rows.order === "key" && "ascending", 3: rows.order === "newest" && "descending" }[index];
      head.setAttribute("aria-sort", sorted || "none");
    });
    this.#onLoad(true);
  }

  /** More rows are there: fill those in sight that waited for them. */
  #onLoad(isNew = false) {
    const { total } = this.rows;
    if (!isNew && total === this.list.total) {
      for (const [index, row] of this.list.rows) if (row.classList.contains("is-loading")) this.#show(row, index);
      return;
    }
    this.grid.setAttribute("aria-rowcount", total + 1);
    this.empty.replaceChildren();
    if (!total) this.empty.append(this.#explainEmpty());
    this.list.reset(total);
    this.markSelected();
  }

  #explainEmpty() {
    if (this.rows.filter) return emptyState("No entry matches the filter.", "Remove a part of it, or choose a higher namespace.");
    if (state.at) return emptyState("Nothing was here then.", "Choose another moment, or go back to now.");
    if (this.rows.namespace.length) return emptyState("This namespace is empty.", "Entries appear here as soon as an agent writes them.");
    return emptyState(
      "This store is empty.",
      "Entries appear here as soon as an agent writes them. To try it, run this in Python:",
      h("pre", {}, 'store.put(("users", "ada"), "diet", {"text": "likes tea"})'),
    );
  }

  /** Make an empty row. Its parts are made once, because filling a row must be quick. */
  #build() {
    const cells = COLUMNS.map((name) => h("div", { role: "gridcell", class: `cell ${name.toLowerCase()}` }));
    const parts = { item: icon("item"), file: icon("file"), below: h("span", { class: "below" }), name: h("span", { class: "key-name" }) };
    cells[0].append(parts.item, parts.file, parts.below, parts.name);
    const row = h("div", { role: "row", class: "grid-row" }, cells);
    row.parts = parts;
    return row;
  }

  #show(row, index) {
    const entry = this.rows.items[index];
    const [key, value, version, changed, expires] = row.children;
    row.classList.toggle("is-loading", !entry);
    row.id = `row-${index}`;
    row.parts.below.textContent = "";
    if (!entry) {
      row.parts.name.textContent = "…";
      for (const cell of [value, version, changed, expires]) cell.textContent = "";
      row.dataset.address = "";
      this.#mark(row, index);
      return;
    }
    const below = entry.namespace.slice(this.rows.namespace.length);
    row.dataset.address = encodeAddress(entry.namespace, entry.key);
    row.parts.item.classList.toggle("is-hidden", entry.is_file);
    row.parts.file.classList.toggle("is-hidden", !entry.is_file);
    if (below.length) row.parts.below.textContent = `${showNamespace(below)} / `;
    row.parts.name.textContent = showName(entry.key);
    key.title = showNamespace([...below, entry.key]);
    value.textContent = showText(entry.preview);
    version.textContent = entry.version;
    changed.textContent = age(entry.updated_at);
    changed.title = moment(entry.updated_at);
    expires.textContent = entry.expires_at ? until(entry.expires_at) : "";
    expires.title = entry.expires_at ? moment(entry.expires_at) : "";
    this.#mark(row, index);
  }

  #mark(row, index) {
    const isSelected = row.dataset.address !== "" && row.dataset.address === state.entry;
    row.setAttribute("aria-selected", isSelected);
    row.classList.toggle("is-active", index === this.active);
    if (index === this.active) this.grid.setAttribute("aria-activedescendant", row.id);
  }

  /** Mark the entry that is open, and the row of the keyboard. */
  markSelected() {
    for (const [index, row] of this.list.rows) this.#mark(row, index);
  }

  #move(index) {
    this.active = Math.max(0, Math.min(index, this.list.total - 1));
    this.list.reveal(this.active);
    this.markSelected();
  }

  /** Open the entry in the row of the keyboard. */
  openActive() {
    const address = this.list.rows.get(this.active)?.dataset.address;
    if (address) go({ entry: address, pane: "" });
  }

  #onKey(event) {
    const page = Math.floor(this.grid.clientHeight / ROW_HEIGHT) - 1;
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) {
      event.preventDefault();
      this.#move(this.active + steps[event.key]);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.openActive();
    }
  }

  #onClick(event) {
    const row = event.target.closest(".grid-row");
    if (!row?.dataset.address) return;
    this.active = Number(row.getAttribute("aria-rowindex")) - 2;
    this.markSelected();
    this.openActive();
  }

  /** Let a row light up: its entry has just changed. */
  flash(address) {
    for (const row of this.list.rows.values()) {
      if (row.dataset.address === address) {
        row.classList.remove("flash");
        requestAnimationFrame(() => row.classList.add("flash"));
      }
    }
  }
}
