// The frame of the page: the bar at the top, the tree, the view in the middle, and the entry beside it.

import { NamespaceTree } from "../browse/namespace_tree.js";
import { signOut } from "../data/api.js";
import { onChange, onStatus } from "../data/changes.js";
import { decodeAddress, encodeAddress, isSame, showName, showNamespace, showText } from "../data/names.js";
import { button, debounce, emptyState, fill, h, icon } from "../show/dom.js";
import { moment } from "../show/times.js";
import { showKeys } from "./keyboard.js";
import { may, mayLookBack, session } from "./session.js";
import { addressOf, go, onState, state } from "./state.js";
import { toggleTheme } from "./theme.js";
import { attempt, isForReader, toast } from "./toasts.js";

const NAMES = { browse: "Browse", live: "Live", history: "History", threads: "Threads", operation: "Operation" };
const LOADERS = {
  browse: () => import("../views/browse.js"),
  search: () => import("../views/search.js"),
  live: () => import("../views/live.js"),
  history: () => import("../views/history.js"),
  threads: () => import("../views/threads.js"),
  operation: () => import("../views/operation.js"),
};
const STATUS = {
  off: "Not live: this token may not watch",
  connecting: "Connecting",
  live: "Live",
  lost: "Connection lost: trying again",
};

export class Frame {
  constructor() {
    this.tree = new NamespaceTree();
    this.views = new Map();
    this.detail = null;
    this.hasFailed = false;
    this.tabs = h("nav", { class: "tabs", "aria-label": "Views" });
    this.searchBox = h("input", {
      id: "search",
      type: "search",
      placeholder: "Search entries and files",
      "aria-label": "Search entries and files",
      autocomplete: "off",
      spellcheck: "false",
      oninput: debounce(120, () => this.#search()),
    });
    this.status = h("span", { class: "live-status", role: "status" }, h("span", { class: "dot" }), h("span", { class: "live-text" }));
    this.banner = h("div", { class: "banner", hidden: true });
    this.heading = h("h1", { class: "sr-only" });
    this.main = h("section", { class: "pane main-pane", "aria-label": "View", tabindex: "-1" });
    this.side = h("section", { class: "pane side-pane", "aria-label": "Namespaces" }, this.tree.element, this.#account());
    this.aside = h("section", { class: "pane detail-pane", "aria-label": "Entry" });
    this.elements = [
      h("a", { class: "skip", href: "#main", onclick: (event) => (event.preventDefault(), this.main.focus()) }, "Skip to the content"),
      h(
        "header",
        { class: "top" },
        h("a", { class: "brand", href: "#/browse", "aria-label": "holdall: all entries" }, h("img", { src: "explorer/icon.svg", alt: "", width: 24, height: 24 }), h("span", {}, "holdall")),
        h("div", { class: "search-field", role: "search" }, icon("search"), this.searchBox, h("kbd", { "aria-hidden": "true" }, "/")),
        this.tabs,
        h(
          "div",
          { class: "tools" },
          this.status,
          button("Light or dark", "theme", toggleTheme, { bare: true, class: "bare" }),
          h("button", { type: "button", class: "bare", "aria-label": "Keyboard shortcuts", title: "Keyboard shortcuts", onclick: showKeys }, "?"),
        ),
      ),
      this.banner,
      h("main", { class: "panes", id: "main" }, this.heading, this.side, this.main, this.aside),
    ];
  }

  async start() {
    this.#drawTabs();
    onState((before) => attempt(() => this.#show(before)));
    onStatus((status) => {
      if (status === "live" && this.hasFailed) attempt(() => this.#show(null));
      this.status.dataset.status = status;
      this.status.lastChild.textContent = STATUS[status];
      this.status.title = STATUS[status];
    });
    onChange((change) => this.#onChange(change));
    const refresh = attempt(() => this.tree.start());
    await attempt(() => this.#show(null));
    await refresh;
  }

  /** What the token is, and how to leave. */
  #account() {
    const scope = session.scope.length ? `Scope: ${showNamespace(session.scope)}` : "Whole store";
    const rights = may("write") ? "read and write" : "read only";
    const isOpen = session.token === "none";
    return h(
      "div",
      { class: "account" },
      h("p", {}, h("strong", {}, scope), h("span", { class: "badge" }, rights)),
      !isOpen && h("p", { class: "hint" }, showText(session.label) || `Token ${session.token.slice(0, 6)}…`, " · ", h("button", { type: "button", class: "link", onclick: () => this.#leave() }, "Sign out")),
    );
  }

  async #leave() {
    await attempt(signOut);
    location.reload();
  }

  #drawTabs() {
    const hidden = { history: !mayLookBack() };
    fill(
      this.tabs,
      Object.entries(NAMES)
        .filter(([view]) => !hidden[view])
        .map(([view, name]) => {
          const isCurrent = view === state.view || (view === "browse" && state.view === "search");
          return h("a", { href: addressOf({ view, entry: "", q: "", pane: view === "browse" ? "" : "main" }), "aria-current": isCurrent ? "page" : null }, name);
        }),
    );
  }

  #search() {
    const q = this.searchBox.value;
    if (q.trim()) go({ view: "search", q, entry: "", pane: "main" }, { replace: state.view === "search" });
    else if (state.view === "search" && !state.filter) go({ view: "browse", q: "" });
    else go({ q: "" }, { replace: true });
  }

  async #show(before) {
    document.body.dataset.pane = state.entry ? "detail" : state.view === "browse" && state.pane !== "main" && !state.folder ? "side" : "main";
    document.body.dataset.view = state.view;
    if (state.isOutside) toast("This address leads to something outside the scope of your token.", { kind: "error" });
    if (state.at && !mayLookBack()) {
      toast("The past cannot be shown here: this store keeps no history, or this token may not read it. You see the present.", { kind: "error" });
      go({ at: "" }, { replace: true });
      return;
    }
    this.#drawTabs();
    this.#drawBanner();
    if (document.activeElement !== this.searchBox) this.searchBox.value = state.view === "search" ? state.q : "";
    this.heading.textContent = this.#title();
    document.title = `${this.heading.textContent} · holdall`;
    const isPastChanged = before && before.at !== state.at;
    if (before && (isPastChanged || !isSame(before.ns, state.ns))) {
      if (isPastChanged) attempt(() => this.tree.root.refresh());
      attempt(() => this.tree.select());
    }
    const known = isPastChanged || this.hasFailed ? null : before;
    this.hasFailed = false;
    await Promise.all([this.#fillPane(this.main, () => this.#showView(known)), this.#fillPane(this.aside, () => this.#showDetail(known))]);
  }

  /** Fill a pane. If that fails, the pane shows why, and not what it showed before. */
  async #fillPane(pane, fillIt) {
    const wanted = location.hash;
    try {
      await fillIt();
    } catch (error) {
      if (location.hash !== wanted || !isForReader(error)) return;
      this.hasFailed = true;
      fill(pane, emptyState("This cannot be shown.", error.message, button("Try again", null, () => attempt(() => this.#show(null)))));
    }
  }

  #title() {
    return state.entry ? showName(decodeAddress(state.entry).key) : state.view === "search" ? `Search: ${state.q}` : state.view === "browse" ? showNamespace(state.ns) : NAMES[state.view];
  }

  async #showView(before) {
    const name = state.view;
    const { View } = await LOADERS[name]();
    if (state.view !== name) return;
    if (!this.views.has(name)) this.views.set(name, new View());
    const view = this.views.get(name);
    if (this.current !== view) this.current?.leave?.();
    this.current = view;
    if (this.main.firstChild !== view.element) this.main.replaceChildren(view.element);
    await view.show(before?.view === name ? before : null);
  }

  async #showDetail(before) {
    const isShown = Boolean(state.entry);
    document.body.classList.toggle("has-detail", isShown);
    if (!isShown) {
      this.detail?.leave();
      this.aside.replaceChildren();
      return;
    }
    if (before && before.entry === state.entry && before.tab === state.tab && before.version === state.version && this.aside.firstChild) return;
    const { Detail } = await import("../detail/detail.js");
    this.detail ??= new Detail();
    if (this.aside.firstChild !== this.detail.element) this.aside.replaceChildren(this.detail.element);
    await this.detail.show();
  }

  #drawBanner() {
    this.banner.hidden = !state.at;
    if (!state.at) return;
    const when = Number.isNaN(Date.parse(state.at)) || !state.at.includes("-") ? "an earlier moment" : moment(state.at);
    fill(this.banner, icon("history"), h("span", {}, "You see the store as it was at ", h("strong", {}, when), ". Nothing can be changed here."), h("a", { class: "button", href: addressOf({ at: "" }) }, "Back to now"));
  }

  #onChange(change) {
    if (state.at) return;
    this.tree.refreshSoon();
    this.current?.onChange?.(change);
    if (!change || encodeAddress(change.namespace, change.key) === state.entry) this.detail?.onChange(change);
  }
}
