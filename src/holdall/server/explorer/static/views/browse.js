// The entries of a namespace as a table, or its files as folders.

import { EntryTable } from "../browse/entry_table.js";
import { encodeAddress, isBelow, isSame, showName } from "../data/names.js";
import { mayWrite } from "../shell/session.js";
import { addressOf, go, state } from "../shell/state.js";
import { attempt } from "../shell/toasts.js";
import { button, fill, h, throttle } from "../show/dom.js";
import { plural } from "../show/times.js";
import { parseFilter, showFilter } from "../browse/filter_chips.js";

const MOST_REFRESHED = 2000; // entries

export class View {
  constructor() {
    this.table = new EntryTable();
    this.crumbs = h("nav", { class: "crumbs", "aria-label": "Path" });
    this.count = h("span", { class: "count" });
    this.stale = button("Something has changed: read again", null, () => attempt(() => this.#refresh()), { hidden: true, class: "stale" });
    this.actions = h("div", { class: "actions" });
    this.chips = h("div", { class: "chips" });
    this.body = h("div", { class: "view-body" });
    this.element = h("div", { class: "view" }, h("div", { class: "view-head" }, this.crumbs, this.count, this.stale, this.actions), this.chips, this.body);
    this.folder = null;
    this.changed = new Set(); // addresses
    this.refreshSoon = throttle(400, () => attempt(() => this.#refreshChanged()));
  }

  async show(before) {
    const isSameList = before && isSame(before.ns, state.ns) && before.order === state.order && before.filter === state.filter;
    const isSameTab = before && before.folder === state.folder && before.list === state.list;
    this.#drawHead();
    if (state.folder) return this.#showFolder(isSameList && isSameTab);
    if (this.body.firstChild !== this.table.element) fill(this.body, this.table.element);
    if (isSameList && isSameTab) return this.table.markSelected();
    return this.#refresh();
  }

  #drawHead() {
    const steps = [["All entries", []], ...state.ns.map((label, index) => [label, state.ns.slice(0, index + 1)])];
    fill(
      this.crumbs,
      h("ol", {}, steps.map(([label, ns], index) => {
        const isLast = index === steps.length - 1;
        const target = addressOf({ ns, entry: "", folder: "", filter: "", pane: "main" });
        return h("li", {}, h("a", { href: target, title: index ? showName(label) : null, "aria-current": isLast ? "true" : null }, index ? showName(label) : label));
      })),
    );
    const order = state.filter ? "newest" : state.order || "key";
    fill(
      this.actions,
      state.ns.length > 0 && this.#switch("Show", [["Entries", !state.folder, { folder: "" }], ["Files", Boolean(state.folder), { folder: "/" }]]),
      !state.folder && this.#switch("Order", [["By key", order === "key", { order: "", filter: "" }], ["Newest", order === "newest", { order: "newest" }]]),
      mayWrite() && !state.folder && button("New entry", "plus", () => this.create(), { class: "primary" }),
    );
    showFilter(this.chips);
  }

  #switch(label, choices) {
    return h(
      "div",
      { class: "switch", role: "group", "aria-label": label },
      choices.map(([name, isOn, changes]) => h("button", { type: "button", "aria-pressed": isOn, onclick: () => go({ ...changes, entry: "", pane: "main" }) }, name)),
    );
  }

  async #refresh() {
    if (state.view !== "browse") return;
    this.stale.hidden = true;
    if (state.folder) {
      await this.folder?.refresh();
      return;
    }
    await this.table.open(state.ns, { order: state.order || "key", filter: parseFilter() });
    this.count.textContent = plural(this.table.rows.total, "entry", "entries");
  }

  async #showFolder(isSame) {
    const { FolderList } = await import("../browse/folder_list.js");
    this.folder ??= new FolderList();
    this.count.textContent = "";
    if (this.body.firstChild !== this.folder.element) fill(this.body, this.folder.element);
    if (isSame) this.folder.markSelected();
    else await this.folder.show();
  }

  onChange(change) {
    if (change && !isBelow(change.namespace, state.ns)) return;
    if (change) this.changed.add(encodeAddress(change.namespace, change.key));
    this.refreshSoon();
  }

  /** Show what has changed. A list that was read far is not read again by itself: that would take long. */
  async #refreshChanged() {
    const isLong = !state.folder && this.table.rows?.items.length > MOST_REFRESHED;
    this.stale.hidden = !isLong;
    if (isLong) return;
    await this.#refresh();
    for (const address of this.changed) this.table.flash(address);
    this.changed.clear();
  }

  async create() {
    if (!mayWrite()) return;
    const { createEntry } = await import("../detail/new_entry.js");
    await createEntry(state.ns);
  }

  focus() {
    this.table.grid.focus();
  }
}
