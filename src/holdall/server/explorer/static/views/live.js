// The changes as they come: which entry, by whom, and what differed.

import { onChange, onStatus } from "../data/changes.js";
import { getEntry, readFile, statFile, versions } from "../data/api.js";
import { encodeAddress, isBelow, showName, showNamespace, showText } from "../data/names.js";
import { decode } from "../detail/file_view.js";
import { areOfFile, KINDS, textOf } from "../detail/timeline.js";
import { may, mayLookBack } from "../shell/session.js";
import { go, state } from "../shell/state.js";
import { compareLines } from "../show/differences.js";
import { button, emptyState, fill, h, icon } from "../show/dom.js";
import { plural } from "../show/times.js";

const MOST = 500; // changes kept
const MOST_DETAILS = 30; // changes whose difference is read
const MOST_VERSIONS = 50; // read to find the value before a change
const LARGEST = 100_000; // bytes of a file whose lines are compared
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

const kept = []; // newest first; also while another view is shown
const seen = new Map(); // the last text that was read of each entry
onChange((change) => {
  if (!change) return;
  kept.unshift(change);
  kept.length = Math.min(kept.length, MOST);
});

export class View {
  constructor() {
    this.isPaused = false;
    this.waiting = 0;
    this.shown = [];
    this.count = h("span", { class: "count", role: "status" });
    this.actions = h("div", { class: "actions" });
    this.list = h("ol", { class: "changes", "aria-label": "Changes, newest first" });
    this.body = h("div", { class: "view-body scroll" }, this.list);
    this.element = h("div", { class: "view" }, h("div", { class: "view-head" }, h("h2", {}, "Live"), this.count, this.actions), this.body);
    this.nodes = new WeakMap();
    onStatus(() => this.#draw());
  }

  show() {
    this.#drawHead();
    this.#draw();
  }

  #drawHead() {
    const label = this.isPaused ? (this.waiting ? `Continue (${this.waiting} new)` : "Continue") : "Pause";
    fill(
      this.actions,
      state.ns.length > 0 && h("span", { class: "chip", title: showNamespace(state.ns) }, h("span", {}, `in ${showNamespace(state.ns)}`), h("button", { type: "button", "aria-label": "Show all namespaces", onclick: () => go({ ns: [] }) }, "×")),
      button(label, this.isPaused ? "play" : "pause", () => this.togglePause(), { "aria-pressed": this.isPaused }),
    );
  }

  togglePause() {
    this.isPaused = !this.isPaused;
    this.waiting = 0;
    this.#drawHead();
    this.#draw();
  }

  onChange(change) {
    if (!change || !isBelow(change.namespace, state.ns)) return;
    if (this.isPaused) {
      this.waiting++;
      this.#drawHead();
      return;
    }
    if (this.isQueued) return;
    this.isQueued = true;
    setTimeout(() => {
      this.isQueued = false;
      this.#draw();
    }, 150);
  }

  #draw() {
    if (state.view !== "live" || this.isPaused) return;
    this.shown = kept.filter((change) => isBelow(change.namespace, state.ns));
    this.count.textContent = this.shown.length ? plural(this.shown.length, "change") : "";
    if (!this.shown.length) {
      const text = may("watch") ? "Changes appear here as agents make them. Choose a namespace on the left to see only its changes." : "This token may not watch. Make one that allows it: --allow read,watch.";
      fill(this.list, h("li", { class: "no-result" }, emptyState("No change yet.", text)));
      return;
    }
    const nodes = this.shown.map((change) => {
      if (!this.nodes.has(change)) this.nodes.set(change, this.#row(change));
      return this.nodes.get(change);
    });
    this.list.replaceChildren(...nodes);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#addDetails(), 250);
  }

  #row(change) {
    const address = encodeAddress(change.namespace, change.key);
    const details = h("div", { class: "change-details" });
    const row = h(
      "li",
      { class: "change flash" },
      h(
        "button",
        { type: "button", class: "change-head", onclick: () => go({ entry: address, tab: "", pane: "" }) },
        h("time", { class: "hint" }, clock.format(change.time)),
        h("span", { class: `kind ${change.kind}` }, KINDS[change.kind]),
        icon(change.key.startsWith("/") ? "file" : "item"),
        h("span", { class: "change-name" }, h("span", { class: "below" }, `${showNamespace(change.namespace)} / `), showName(change.key)),
        change.author && h("span", { class: "badge" }, showText(change.author)),
        change.reason && h("span", { class: "hint" }, showText(change.reason)),
      ),
      details,
    );
    row.details = details;
    return row;
  }

  /** Read what differed, of the newest changes. */
  async #addDetails() {
    for (const change of this.shown.slice(0, MOST_DETAILS)) {
      if (change.isRead || state.view !== "live" || this.isPaused) continue;
      change.isRead = true;
      const texts = await readBoth(change).catch(() => null);
      if (texts) fill(this.nodes.get(change).details, lines(...texts, change.key.startsWith("/")));
    }
  }
}

/** The text of an entry before and after a change; null where it is not known, or is a large file's. */
async function readBoth(change) {
  const { namespace, key } = change;
  const name = encodeAddress(namespace, key);
  if (mayLookBack()) {
    const found = await versions(namespace, key, MOST_VERSIONS);
    const at = found.findIndex((version) => version.version === change.version);
    if (at >= 0 && (found[at + 1] || found.length < MOST_VERSIONS)) {
      const isFile = areOfFile(found);
      const both = [found[at + 1], found[at]];
      if (isFile && both.some((version) => version?.size > LARGEST)) return null;
      return Promise.all(both.map((version) => textOf(change, version, isFile)));
    }
  }
  const before = seen.get(name) ?? "";
  const after = change.kind === "put" ? await readNow(namespace, key) : "";
  if (after === null) return null;
  seen.set(name, after);
  if (seen.size > MOST) seen.delete(seen.keys().next().value);
  return [before, after];
}

/** The present text of an entry; null of a file that is large, or no text. */
async function readNow(namespace, key) {
  if (key.startsWith("/")) {
    try {
      const { size } = await statFile(namespace, key);
      return size > LARGEST ? null : decode(await readFile(namespace, key, { size }), false);
    } catch (error) {
      if (error.status !== 404) throw error; // an item with such a key
    }
  }
  return JSON.stringify((await getEntry(namespace, key)).value, null, 2);
}

/** The lines that differ, at most a few. */
function lines(before, after, isFile) {
  const withoutCommas = (text) => (isFile ? text : text.replace(/,$/gm, ""));
  const changed = compareLines(withoutCommas(before), withoutCommas(after)).filter(([one, other]) => one !== other);
  const rows = [];
  for (const [one, other] of changed) {
    if (one?.trim() && !/^[{}]$/.test(one.trim())) rows.push(h("div", { class: "removed" }, `− ${shorten(one)}`));
    if (other?.trim() && !/^[{}]$/.test(other.trim())) rows.push(h("div", { class: "added" }, `+ ${shorten(other)}`));
  }
  const left = rows.length - 6;
  return [...rows.slice(0, 6), left > 0 && h("div", { class: "hint" }, `and ${plural(left, "more line")}`)];
}

const shorten = (line) => showText(line.length > 300 ? `${line.trim().slice(0, 300)}…` : line.trim());
