// How the store and its server are: sizes, rates, latencies, index lag, leases and tokens.

import { metrics, namespaces, stats, tokens } from "../data/api.js";
import { showName, showNamespace, showText } from "../data/names.js";
import { may, session } from "../shell/session.js";
import { state } from "../shell/state.js";
import { attempt } from "../shell/toasts.js";
import { barChart, lineChart } from "../show/charts.js";
import { fill, h } from "../show/dom.js";
import { age, bytes, count, plural, took, until } from "../show/times.js";

const INTERVAL = 2000; // milliseconds between two readings
const SLOW_EVERY = 5; // readings between two readings of sizes
const MOST = 120; // readings kept
const MOST_ROOTS = 20; // in a chart
const READS = /^(GET|HEAD)$|^POST \/(v1\/(search|count)|store\/items\/search)/;

export class View {
  constructor() {
    this.cards = h("dl", { class: "cards" });
    this.charts = h("div", { class: "charts" });
    this.tokens = h("section", { class: "tokens" });
    this.note = h("p", { class: "hint" });
    this.body = h("div", { class: "view-body scroll operation", tabindex: "0", role: "region", "aria-label": "Operation" }, this.cards, this.charts, this.tokens, this.note);
    this.element = h("div", { class: "view" }, h("div", { class: "view-head" }, h("h2", {}, "Operation")), this.body);
    this.readings = [];
    this.round = 0;
  }

  async show() {
    clearTimeout(this.timer);
    this.isOperator = may("admin") && !session.scope.length;
    this.note.textContent = this.isOperator ? "" : "Rates, latencies and tokens need an admin token for the whole store.";
    await this.#read();
  }

  leave() {
    clearTimeout(this.timer);
  }

  async #read() {
    await attempt(async () => {
      if (!this.stats || this.round % SLOW_EVERY === 0) await this.#readSizes();
      this.round++;
      if (this.isOperator) await this.#readRates();
      this.#draw();
    });
    clearTimeout(this.timer); // of another reading, if the view was shown again meanwhile
    if (state.view === "operation") this.timer = setTimeout(() => this.#read(), INTERVAL);
  }

  async #readSizes() {
    [this.stats, this.roots] = await Promise.all([stats(), namespaces([], { counts: true, limit: MOST_ROOTS })]);
    if (this.isOperator) this.known = await tokens();
  }

  async #readRates() {
    const now = await metrics();
    const before = this.last;
    this.last = now;
    if (!before) return;
    const seconds = (Date.parse(now.time) - Date.parse(before.time)) / 1000;
    const known = new Map(before.operations.map((one) => [`${one.method} ${one.route}`, one]));
    const sums = { reads: 0, writes: 0, readTime: 0, writeTime: 0 };
    for (const one of now.operations) {
      const name = `${one.method} ${one.route}`;
      // Not below 0: each worker answers with counts of the others that are up to a second old.
      const requests = Math.max(0, one.requests - (known.get(name)?.requests ?? 0));
      const kind = READS.test(one.method) || READS.test(name) ? "read" : "write";
      sums[`${kind}s`] += requests;
      sums[`${kind}Time`] += Math.max(0, one.seconds - (known.get(name)?.seconds ?? 0));
    }
    this.readings.push({
      reads: sums.reads / seconds,
      writes: sums.writes / seconds,
      readTime: sums.reads ? sums.readTime / sums.reads : null,
      writeTime: sums.writes ? sums.writeTime / sums.writes : null,
      lag: this.stats.text_index_lag,
    });
    if (this.readings.length > MOST) this.readings.shift();
  }

  #draw() {
    const { stats: found, last } = this;
    const cards = [
      ["Entries", count(found.entries)],
      ["Files", count(found.files)],
      found.bytes !== null && ["Size", bytes(found.bytes)],
      found.vectors !== null && ["Vectors", count(found.vectors)],
      found.leases !== null && ["Leases held", count(found.leases)],
      !session.scope.length && ["Text index", found.text_index_lag === null ? "not built" : found.text_index_lag ? `${count(found.text_index_lag)} changes behind` : "up to date"],
      last && ["Open streams", count(last.watchers)],
      last && ["Conflicts", count(last.conflicts)],
    ];
    fill(this.cards, cards.filter(Boolean).map(([name, value]) => h("div", { class: "card" }, h("dt", {}, name), h("dd", {}, value))));
    const roots = this.roots.map((one) => [showNamespace(one.namespace), one.total, plural(one.total, "entry", "entries")]);
    const hidden = found.entries - this.roots.reduce((sum, one) => sum + one.total, 0);
    if (hidden > 0 && this.roots.length < MOST_ROOTS && Object.keys(found.root_bytes ?? {}).some((root) => root.startsWith(".holdall."))) {
      roots.push(["hidden (.holdall…)", hidden, plural(hidden, "entry", "entries")]);
    }
    const bySize = (sizes) => Object.entries(sizes ?? {}).sort((one, other) => other[1] - one[1]).slice(0, MOST_ROOTS).map(([root, size]) => [showName(root), size, bytes(size)]);
    const [sizes, history] = [bySize(found.root_bytes), bySize(found.history_bytes)];
    fill(this.charts, this.isOperator && this.#lines(), roots.length > 0 && barChart("Entries by root", roots), sizes.length > 0 && barChart("Size by root", sizes), history.length > 0 && barChart("Old values kept, by root", history));
    if (this.known) fill(this.tokens, this.#tokenTable());
  }

  #lines() {
    const values = (name) => this.readings.map((reading) => reading[name]);
    const newest = this.readings.at(-1);
    if (!newest) return h("p", { class: "hint" }, "Measuring …");
    const rate = (number) => `${number.toFixed(1)}/s`;
    const latency = (seconds) => (seconds === null ? "none" : took(seconds));
    return [
      lineChart("Requests", [["Reads", values("reads"), rate(newest.reads)], ["Writes", values("writes"), rate(newest.writes)]], "This page's own requests are counted too."),
      lineChart("Mean latency", [["Reads", values("readTime"), latency(newest.readTime)], ["Writes", values("writeTime"), latency(newest.writeTime)]]),
      newest.lag !== null && lineChart("Text index lag", [["Changes behind", values("lag"), count(newest.lag)]]),
    ];
  }

  #tokenTable() {
    const rows = this.known.map((one) =>
      h(
        "tr",
        {},
        h("td", {}, showText(one.label) || h("span", { class: "hint" }, one.id)),
        h("td", {}, one.scope.length ? showNamespace(one.scope) : "whole store"),
        h("td", {}, one.allow.join(", ")),
        h("td", {}, age(one.created_at)),
        h("td", {}, one.expires_at ? until(one.expires_at) : "never"),
      ),
    );
    if (!rows.length) return [h("h3", {}, "Tokens"), h("p", { class: "hint" }, "There are none. Make one with: holdall URL token create")];
    const heads = ["Label", "Scope", "Allows", "Made", "Expires"].map((name) => h("th", { scope: "col" }, name));
    return [h("h3", {}, "Tokens"), h("div", { class: "table-frame", tabindex: "0", role: "region", "aria-label": "Tokens" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)))];
  }
}
