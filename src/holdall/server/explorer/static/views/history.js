// What changed since a moment, the store as it was then, and the way back.

import { cursor, differences, rewind } from "../data/api.js";
import { encodeAddress, isSame, showName, showNamespace } from "../data/names.js";
import { dialog } from "../shell/dialogs.js";
import { may, mayLookBack, mayWrite, session } from "../shell/session.js";
import { go, state } from "../shell/state.js";
import { attempt, toast } from "../shell/toasts.js";
import { sideBySide } from "../show/differences.js";
import { button, emptyState, fill, h, icon } from "../show/dom.js";
import { moment, plural } from "../show/times.js";

const PRESETS = [["5 minutes", 300], ["1 hour", 3600], ["1 day", 86_400], ["1 week", 604_800]];
const MOST = 200; // differences shown

/** A time for a field of the kind datetime-local, in the reader's zone. */
function toField(date) {
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60_000);
  return local.toISOString().slice(0, 19);
}

export class View {
  constructor() {
    this.field = h("input", { type: "datetime-local", id: "since", step: "1", onchange: () => this.#choose(new Date(this.field.value)) });
    this.presets = h("div", { class: "switch", role: "group", "aria-label": "Since" }, PRESETS.map(([name, seconds]) => h("button", { type: "button", onclick: () => this.#choose(new Date(Date.now() - seconds * 1000)) }, `${name} ago`)));
    this.actions = h("div", { class: "actions" });
    this.summary = h("p", { class: "hint", role: "status" });
    this.list = h("ol", { class: "results" });
    this.title = h("h2", {});
    this.controls = h("div", { class: "history-controls" }, h("label", { for: "since" }, "What changed since"), h("div", { class: "editor-tools" }, this.field, this.presets), this.summary);
    this.body = h("div", { class: "view-body scroll" }, this.list);
    this.element = h("div", { class: "view" }, h("div", { class: "view-head" }, this.title, this.actions), this.controls, this.body);
  }

  async show(before) {
    if (before && before.since === state.since && isSame(before.ns, state.ns)) return;
    if (!mayLookBack()) return this.#explainMissing();
    if (!state.since) {
      const begin = session.features.history_since; // to the microsecond, which a Date cannot hold
      const hourAgo = new Date(Date.now() - 3_600_000);
      go({ since: Date.parse(begin) > hourAgo ? begin : hourAgo.toISOString() }, { replace: true });
      return;
    }
    this.title.textContent = `History of ${state.ns.length ? showNamespace(state.ns) : "the whole store"}`;
    this.field.value = toField(new Date(state.since));
    fill(
      this.actions,
      state.ns.length > 0 && button("Whole store", null, () => go({ ns: [] })),
      button("See the store as it was then", "history", () => go({ view: "browse", at: state.since, entry: "", pane: "main" })),
      mayWrite() && button("Rewind to then …", "back", () => this.#rewind(), { class: "danger-quiet" }),
    );
    await this.#refresh();
  }

  /** An address of somebody else, or a key, can lead here where there is nothing to look back at. */
  #explainMissing() {
    this.title.textContent = "History";
    this.controls.remove();
    this.body.replaceChildren(
      may("history")
        ? emptyState("This store keeps no history.", "It keeps old values from the moment it is opened with history=, a number of seconds.")
        : emptyState("This token may not read history.", "Make one that allows it: --allow read,history."),
    );
  }

  #choose(date) {
    if (!Number.isNaN(date.getTime())) go({ since: date.toISOString(), entry: "" });
  }

  async #refresh() {
    const { ns, since } = state;
    let found;
    try {
      found = await differences(ns, since, MOST);
    } catch (error) {
      if (error.status !== 410 && error.status !== 501) throw error;
      this.summary.textContent = "";
      fill(this.list, h("li", { class: "no-result" }, this.#explainGone()));
      return;
    }
    if (state.since !== since || !isSame(state.ns, ns)) return;
    const number = plural(found.differences.length, "entry differs", "entries differ");
    this.summary.textContent = `${found.more ? `More than ${number}` : number} from ${moment(since)} until now.`;
    if (!found.differences.length) fill(this.list, h("li", { class: "no-result" }, emptyState("Nothing has changed since then.", "Choose an earlier moment.")));
    else fill(this.list, found.differences.map(row));
  }

  #explainGone() {
    const begin = session.features.history_since;
    const showAll = button("See all that changed since then", null, () => go({ since: begin, entry: "" }));
    return emptyState("The history does not go back so far.", `This store keeps old values since ${moment(begin)}.`, showAll);
  }

  /** Show what a rewind would change, and do it if the reader agrees. */
  async #rewind() {
    const { ns, since } = state;
    const plan = await attempt(() => rewind(ns, since, true));
    if (!plan) return;
    const shown = await attempt(() => differences(ns, since, MOST));
    const sum = plan.restored + plan.deleted;
    const place = ns.length ? showNamespace(ns) : "the whole store";
    const agreed = await dialog(`Rewind ${place}?`, (close) => [
      h("p", { class: "wide" }, `To ${moment(since)}: ${plural(plan.restored, "entry", "entries")} would be brought back, and ${plural(plan.deleted, "entry", "entries")} made since then would be deleted. A rewind is a change like any other, and can be undone.`),
      h("ol", { class: "results preview", tabindex: "0", "aria-label": "What would change" }, shown?.differences.map(row)),
      h("div", { class: "dialog-actions" }, h("button", { type: "button", onclick: () => close(false) }, "Cancel"), h("button", { type: "button", class: "danger", disabled: sum === 0, onclick: () => close(true) }, `Rewind ${plural(sum, "entry", "entries")}`)),
    ]);
    if (!agreed) return;
    await attempt(async () => {
      const now = await cursor();
      await rewind(ns, since, false);
      toast(`Rewound ${plural(sum, "entry", "entries")}.`, { undo: () => rewind(ns, now, false).then(() => this.#refresh()) });
      await this.#refresh();
    });
  }
}

/** One entry that differs: a click shows both. */
function row({ namespace, key, before, after }) {
  const kind = !before ? ["put", "new"] : !after ? ["delete", "deleted"] : ["change", "changed"];
  const text = (entry) => (entry ? (typeof entry.value.content === "string" ? entry.value.content : JSON.stringify(entry.value, null, 2)) : "");
  const details = h("div", { class: "comparison", hidden: true });
  const toggle = () => {
    details.hidden = !details.hidden;
    head.setAttribute("aria-expanded", !details.hidden);
    if (!details.firstChild) fill(details, sideBySide(text(before), text(after), before ? "Then" : "Then: it did not exist", after ? "Now" : "Now: it is deleted"), button("Open the entry", null, () => go({ entry: encodeAddress(namespace, key), pane: "" }), { class: "link" }));
    if (!details.hidden) details.scrollIntoView({ block: "nearest" });
  };
  const head = h(
    "button",
    { type: "button", class: "result", "aria-expanded": false, onclick: toggle },
    h("span", { class: "result-head" }, h("span", { class: `kind ${kind[0]}` }, kind[1]), icon(key.startsWith("/") ? "file" : "item"), h("span", { class: "result-key" }, showName(key)), h("span", { class: "result-place" }, showNamespace(namespace))),
  );
  return h("li", {}, head, details);
}
