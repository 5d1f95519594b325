// The namespaces as a tree, each loaded when it is opened, with the number of entries in and below it.

import { countEntries, namespaces } from "../data/api.js";
import { showName } from "../data/names.js";
import { go, state } from "../shell/state.js";
import { attempt } from "../shell/toasts.js";
import { h, icon, throttle } from "../show/dom.js";
import { count } from "../show/times.js";

const PAGE = 200;

/** One namespace in the tree: its node, and its children once they were loaded. */
class Branch {
  constructor(tree, labels) {
    Object.assign(this, { tree, labels, children: null, listed: 0, isComplete: false, isOpen: false, total: null });
    this.name = h("span", { class: "tree-name" }, labels.length ? showName(labels.at(-1)) : "All entries");
    this.number = h("span", { class: "tree-count" });
    this.arrow = h("span", { class: "tree-arrow" }, icon("chevron"));
    this.row = h("div", { class: "tree-row" }, this.arrow, this.name, this.number);
    this.row.style.paddingInlineStart = `${8 + labels.length * 14}px`;
    this.group = h("div", { role: "group", hidden: true });
    this.node = h("div", { role: "treeitem", tabindex: "-1", "aria-level": labels.length + 1 }, this.row, this.group);
    this.node.branch = this;
  }

  setCounts(own, total) {
    this.total = total;
    this.number.textContent = count(total);
    this.setLeaf(total === own && !this.children?.length);
  }

  setLeaf(isLeaf) {
    this.isLeaf = isLeaf;
    this.arrow.classList.toggle("is-leaf", isLeaf);
    if (isLeaf) this.node.removeAttribute("aria-expanded");
    else this.node.setAttribute("aria-expanded", this.isOpen);
  }

  async open() {
    if (!this.children) await this.load();
    this.isOpen = true;
    this.group.hidden = false;
    this.setLeaf(!this.children.length);
  }

  close() {
    this.isOpen = false;
    this.group.hidden = true;
    this.setLeaf(this.isLeaf);
  }

  /** Read the children; those that are known keep their own children. */
  async load() {
    const known = new Map((this.children ?? []).map((child) => [child.labels.at(-1), child]));
    const limit = this.isComplete ? this.listed + PAGE : Math.max(PAGE, this.listed);
    const found = await namespaces(this.labels, { limit });
    this.listed = found.length;
    this.children = this.#below(found).map((one) => known.get(one.namespace.at(-1)) ?? new Branch(this.tree, one.namespace));
    this.isComplete = found.length < limit;
    const more = !this.isComplete && h("button", { type: "button", class: "tree-more", onclick: () => this.more() }, "Show more");
    this.group.replaceChildren(...this.children.map((child) => child.node), ...(more ? [more] : []));
    this.setLeaf(!this.children.length);
    if (this === this.tree.root) attempt(async () => (this.number.textContent = count(await countEntries([]))));
    this.#count(0);
  }

  /** A list of namespaces begins with the parent itself, if it has entries of its own. */
  #below(found) {
    return found.filter((one) => one.namespace.length > this.labels.length);
  }

  async more() {
    const start = this.listed;
    const found = await attempt(() => namespaces(this.labels, { offset: start, limit: PAGE }));
    if (!found) return;
    const added = this.#below(found).map((one) => new Branch(this.tree, one.namespace));
    this.listed += found.length;
    this.children.push(...added);
    const button = this.group.lastChild;
    button.before(...added.map((child) => child.node));
    this.isComplete = found.length < PAGE;
    if (this.isComplete) button.remove();
    this.#count(start);
  }

  async #count(offset) {
    if (!this.children.length) return;
    const found = await attempt(() => namespaces(this.labels, { counts: true, offset, limit: this.listed - offset }));
    const byName = new Map(this.children.map((child) => [child.labels.at(-1), child]));
    for (const one of this.#below(found ?? [])) byName.get(one.namespace.at(-1))?.setCounts(one.entries, one.total);
  }

  /** Read the tree again, where it is open. */
  async refresh() {
    if (!this.children) return;
    await this.load();
    await Promise.all(this.children.filter((child) => child.isOpen).map((child) => child.refresh()));
  }
}

export class NamespaceTree {
  constructor() {
    this.root = new Branch(this, []);
    this.element = h("div", { class: "tree", role: "tree", "aria-label": "Namespaces" }, this.root.node);
    this.element.addEventListener("click", (event) => this.#onClick(event));
    this.element.addEventListener("keydown", (event) => this.#onKey(event));
    this.refreshSoon = throttle(800, () => attempt(() => this.root.refresh()));
  }

  async start() {
    await this.root.open();
    await this.select();
  }

  /** Open the tree down to the namespace that the page shows, and mark it. */
  async select() {
    let branch = this.root;
    for (const label of state.ns) {
      if (!branch.isOpen) await branch.open();
      const child = branch.children.find((one) => one.labels.at(-1) === label);
      if (!child) break;
      branch = child;
    }
    for (const node of this.element.querySelectorAll('[aria-selected="true"]')) node.setAttribute("aria-selected", false);
    this.#setFocusable(branch.node);
    branch.node.setAttribute("aria-selected", true);
    branch.row.scrollIntoView({ block: "nearest" });
  }

  #setFocusable(node) {
    for (const other of this.element.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    node.tabIndex = 0;
  }

  #onClick(event) {
    const branch = event.target.closest('[role="treeitem"]')?.branch;
    if (!branch || event.target.closest(".tree-more")) return;
    const isArrow = event.target.closest(".tree-arrow");
    if (isArrow && branch.isOpen && branch !== this.root) branch.close();
    else attempt(() => branch.open());
    if (!isArrow) this.#choose(branch);
  }

  #choose(branch) {
    go({ view: state.view === "live" ? "live" : "browse", ns: branch.labels, entry: "", folder: "", tab: "", pane: "main", filter: "" });
  }

  #onKey(event) {
    const branch = event.target.branch;
    if (!branch) return;
    const visible = [...this.element.querySelectorAll('[role="treeitem"]')].filter((node) => node.offsetParent !== null);
    const at = visible.indexOf(branch.node);
    const focus = (node) => {
      if (!node) return;
      this.#setFocusable(node);
      node.focus();
    };
    const keys = {
      ArrowDown: () => focus(visible[at + 1]),
      ArrowUp: () => focus(visible[at - 1]),
      Home: () => focus(visible[0]),
      End: () => focus(visible.at(-1)),
      ArrowRight: () => (branch.isOpen ? focus(branch.children?.[0]?.node) : attempt(() => branch.open())),
      ArrowLeft: () => (branch.isOpen && branch !== this.root ? branch.close() : focus(branch.node.parentElement.closest('[role="treeitem"]'))),
      Enter: () => this.#choose(branch),
      " ": () => this.#choose(branch),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  }
}
