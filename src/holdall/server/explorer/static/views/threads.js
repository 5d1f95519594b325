// The threads of LangGraph's checkpointer: each as a conversation, step by step, with its state.

import { checkpoints, threads } from "../data/api.js";
import { showName, showText } from "../data/names.js";
import { go, state } from "../shell/state.js";
import { attempt } from "../shell/toasts.js";
import { button, debounce, emptyState, fill, h, throttle } from "../show/dom.js";
import { jsonTree } from "../show/json_tree.js";
import { age, moment, plural } from "../show/times.js";

const ROLES = { human: "User", user: "User", ai: "Assistant", assistant: "Assistant", system: "System", tool: "Tool", function: "Tool" };

export class View {
  constructor() {
    this.field = h("input", { type: "search", placeholder: "Find threads", "aria-label": "Find threads", oninput: debounce(200, () => attempt(() => this.#list())) });
    this.list = h("ol", { class: "results thread-list", "aria-label": "Threads" });
    this.conversation = h("section", { class: "conversation", tabindex: "0", "aria-label": "Conversation" });
    this.element = h(
      "div",
      { class: "view" },
      h("div", { class: "view-head" }, h("h2", {}, "Threads")),
      h("div", { class: "view-body threads" }, h("div", { class: "thread-pane" }, h("div", { class: "thread-field" }, this.field), this.list), this.conversation),
    );
    this.steps = [];
    this.refreshSoon = throttle(500, () => attempt(() => this.#refresh()));
  }

  async show(before) {
    this.element.classList.toggle("has-thread", Boolean(state.thread));
    if (!before) await this.#list();
    this.#mark();
    if (before && before.thread === state.thread) return this.#draw();
    return this.#open();
  }

  onChange(change) {
    if (!change || change.namespace[0]?.startsWith(".holdall.")) this.refreshSoon();
  }

  async #refresh() {
    if (state.view !== "threads") return;
    await this.#list();
    this.#mark();
    await this.#open();
  }

  async #list() {
    const query = this.field.value;
    let page;
    try {
      page = await threads(query);
    } catch (error) {
      if (error.title !== "MissingExtra") throw error; // a server without LangGraph
      page = { threads: [], next: null };
    }
    if (this.field.value !== query) return;
    const none = query ? emptyState("No thread matches.", "Try other words.") : emptyState("There are no threads.", "A LangGraph app keeps its conversations here once it is compiled with checkpointer=HoldallSaver(store).");
    if (page.threads.length) fill(this.list, page.threads.map((thread) => this.#row(thread)), this.#more(page.next));
    else fill(this.list, h("li", { class: "no-result" }, none));
  }

  #more(cursor) {
    if (!cursor) return null;
    const more = button("Show more", null, () => attempt(async () => {
      const page = await threads(this.field.value, cursor);
      more.parentElement.replaceWith(...page.threads.map((thread) => this.#row(thread)), this.#more(page.next) ?? "");
    }));
    return h("li", { class: "more" }, more);
  }

  #row(thread) {
    return h(
      "li",
      {},
      h(
        "button",
        { type: "button", class: "result", dataset: { thread: thread.id }, onclick: () => go({ thread: thread.id, step: "" }) },
        h("span", { class: "result-head" }, h("span", { class: "result-key" }, showName(thread.id)), h("span", { class: "hint", title: moment(thread.updated_at) }, age(thread.updated_at))),
        h("span", { class: "result-text" }, showText(thread.preview ?? "")),
        h("span", { class: "hint" }, plural(thread.checkpoints, "checkpoint")),
      ),
    );
  }

  #mark() {
    for (const row of this.list.querySelectorAll("[data-thread]")) {
      const isSelected = row.dataset.thread === state.thread;
      row.classList.toggle("is-selected", isSelected);
      row.setAttribute("aria-pressed", isSelected);
    }
  }

  async #open() {
    if (!state.thread) {
      fill(this.conversation, emptyState("Choose a thread.", "Its conversation appears here, step by step, with the state of the graph."));
      return;
    }
    const wanted = state.thread;
    try {
      const page = await checkpoints(wanted);
      if (state.thread !== wanted) return;
      this.steps = page.checkpoints;
      this.next = page.next;
      // An address may name a step of an older page. The ids of checkpoints are in the order of time.
      while (this.next && state.step && state.step < this.steps.at(-1).checkpoint_id) await this.#readOlder();
      if (state.thread !== wanted) return;
    } catch (error) {
      if (error.status !== 422) throw error;
      fill(this.conversation, emptyState("This thread is encrypted.", error.message));
      return;
    }
    this.#draw();
  }

  async #readOlder() {
    const page = await checkpoints(state.thread, this.next);
    this.steps.push(...page.checkpoints);
    this.next = page.next;
  }

  #draw() {
    if (!state.thread) return;
    if (!this.steps.length) {
      fill(this.conversation, emptyState("This thread has no checkpoint.", "It was deleted, or it has expired."));
      return;
    }
    const at = Math.max(0, this.steps.findIndex((step) => step.checkpoint_id === state.step));
    const step = this.steps[at];
    const before = this.steps[at + 1];
    const parent = this.steps.find((other) => other.checkpoint_id === step.parent_id) ?? before;
    const fork = parent === before ? "" : ` · forked from step ${parent.metadata?.step ?? "?"}`;
    const last = Math.max(...this.steps.map((other) => other.metadata?.step ?? 0)); // that of a fork may be lower
    const earlier = messagesOf(parent).length;
    const messages = messagesOf(step);
    const { messages: _messages, ...rest } = step.values;
    fill(
      this.conversation,
      h(
        "div",
        { class: "step-bar" },
        button("Threads", "back", () => go({ thread: "", step: "" }), { class: "only-narrow" }),
        button("Earlier step", null, () => this.#go(at + 1), { disabled: at === this.steps.length - 1 && !this.next }),
        button("Later step", null, () => this.#go(at - 1), { disabled: at === 0 }),
        h("span", {}, h("strong", {}, `Step ${step.metadata?.step ?? "?"}`), h("span", { class: "hint", title: moment(step.time) }, ` of ${last} · ${step.metadata?.source ?? ""}${fork} · ${age(step.time)}`)),
      ),
      messages.length
        ? h("ol", { class: "messages" }, messages.map((message, index) => bubble(message, index >= earlier)))
        : h("p", { class: "hint" }, "This state has no messages."),
      Object.keys(rest).length > 0 && h("section", {}, h("h3", {}, "State"), jsonTree(rest)),
      step.writes?.length > 0 && h("section", {}, h("h3", {}, "Pending writes"), jsonTree(step.writes)),
      h("section", {}, h("h3", {}, "Metadata"), jsonTree(step.metadata ?? {})),
    );
  }

  async #go(index) {
    if (index >= this.steps.length && this.next) await attempt(() => this.#readOlder());
    if (this.steps[index]) go({ step: this.steps[index].checkpoint_id }, { replace: true });
  }
}

/** The messages of a step: of the channel `messages`, or of any list of messages. */
function messagesOf(step) {
  const values = step?.values ?? {};
  const isMessages = (value) => Array.isArray(value) && value.length > 0 && value.every((one) => one && typeof one === "object" && "content" in one);
  return isMessages(values.messages) ? values.messages : (Object.values(values).find(isMessages) ?? []);
}

function bubble(message, isNew) {
  const role = message.type ?? message.role ?? "other";
  return h(
    "li",
    { class: `message ${ROLES[role] === "User" ? "mine" : role}${isNew ? " is-new" : ""}` },
    h("span", { class: "message-role" }, [ROLES[role] ?? role, message.name].filter(Boolean).map(showText).join(" · "), isNew && h("span", { class: "badge" }, "new in this step")),
    textOf(message.content),
    message.tool_calls?.map((call) => h("div", { class: "tool-call" }, h("strong", {}, call.name ?? "tool"), jsonTree(call.args ?? {}))),
  );
}

/** The text of a message: a text, or a list of parts. */
function textOf(content) {
  if (typeof content === "string") return content ? h("p", {}, showText(content)) : null;
  if (!Array.isArray(content)) return jsonTree(content ?? {});
  return content.map((part) => (typeof part === "string" || typeof part?.text === "string" ? h("p", {}, showText(part.text ?? part)) : jsonTree(part)));
}
