// The entry beside the list: an item or a file, its times, its history, and what can be done with it.

import { countVectors, deleteEntry, deleteFile, fileAddress, getEntry, moveFile, restore, statFile } from "../data/api.js";
import { decodeAddress, encodeAddress, fileName, showFileName, showName, showNamespace, showText } from "../data/names.js";
import { ask, confirm } from "../shell/dialogs.js";
import { mayLookBack, mayUndo, mayWrite, session } from "../shell/session.js";
import { addressOf, go, state } from "../shell/state.js";
import { attempt, toast } from "../shell/toasts.js";
import { button, emptyState, fill, h, icon } from "../show/dom.js";
import { age, bytes, moment, until } from "../show/times.js";
import { showFile } from "./file_view.js";
import { showItem } from "./item_view.js";

export class Detail {
  constructor() {
    this.head = h("div", { class: "detail-head" });
    this.note = h("div", { class: "note", role: "status", hidden: true });
    this.body = h("div", { class: "detail-body", tabindex: "0", role: "region", "aria-label": "Content" });
    this.element = h("article", { class: "detail" }, this.head, this.note, this.body);
    this.editor = null;
    this.subject = null;
    this.drafts = new Map(); // editors that were left before their text was saved, by address
  }

  get isEditing() {
    return this.editor !== null;
  }

  /** Whether closing the page would lose a text. */
  get hasUnsaved() {
    return this.drafts.size > 0 || Boolean(this.editor?.isChanged);
  }

  leave() {
    this.#leaveEditor();
    this.subject = null;
  }

  /** Keep the editor if its text is not saved, so that it is there again when the entry is shown again. */
  #leaveEditor() {
    const { editor } = this;
    this.editor = null;
    if (!editor?.isChanged) return;
    const { namespace, key } = editor.subject;
    this.drafts.set(encodeAddress(namespace, key), editor);
    toast(`Your changes of ${showName(key)} are not saved. They are kept here until you close the page.`);
  }

  async show() {
    const wanted = state.entry;
    const { namespace, key } = decodeAddress(wanted);
    this.#leaveEditor();
    this.note.hidden = true;
    try {
      const subject = await read(namespace, key);
      if (state.entry !== wanted) return;
      this.subject = subject;
    } catch (error) {
      if (error.status !== 404 || state.entry !== wanted) throw error;
      this.subject = { namespace, key, isGone: true, isFile: key.startsWith("/") };
    }
    this.#drawHead();
    await this.#drawBody();
  }

  async #drawBody() {
    const draft = this.drafts.get(state.entry);
    if (draft && !state.tab && mayWrite()) {
      this.drafts.delete(state.entry);
      this.#startEditor(draft);
      return;
    }
    if (state.tab === "history" && mayLookBack()) {
      const { showTimeline } = await import("./timeline.js");
      await showTimeline(this.body, this.subject, () => this.show());
    } else if (this.subject.isGone) {
      fill(this.body, emptyState(state.at ? "It did not exist then." : "There is no such entry now.", mayLookBack() ? "Its history shows what it was, and can bring it back." : "It was deleted, or it has expired."));
    } else if (this.subject.isFile) {
      const isText = await showFile(this.body, this.subject);
      this.head.querySelector(".edit")?.toggleAttribute("hidden", !isText);
    } else {
      showItem(this.body, this.subject);
    }
  }

  #drawHead() {
    const { subject } = this;
    const { namespace, key, isFile, isGone } = subject;
    const isPast = state.tab === "history";
    const list = { ns: namespace, entry: state.entry, folder: isFile ? key.replace(/[^/]*$/, "") : "", filter: "", pane: "" };
    fill(
      this.head,
      h(
        "div",
        { class: "detail-title" },
        button("Back", "back", () => go({ entry: "", tab: "", pane: "main" }), { bare: true, class: "bare only-narrow" }),
        icon(isFile ? "file" : "item"),
        h("h2", { title: key }, isFile ? showFileName(key) : showName(key)),
        button("Copy the link", "link", () => this.#copyLink(), { bare: true, class: "bare" }),
        button("Close", "close", () => go({ entry: "", tab: "" }), { bare: true, class: "bare not-narrow" }),
      ),
      h("p", { class: "detail-place" }, h("a", { href: addressOf({ ...list, view: "browse" }) }, `${showNamespace(namespace)}${isFile ? `: ${showName(key)}` : ""}`)),
      !isGone && this.#facts(),
      h(
        "div",
        { class: "detail-actions" },
        mayLookBack() && button(isPast ? "Value" : "History", isPast ? "item" : "history", () => this.toggleHistory(), { "aria-pressed": isPast }),
        !isGone && !isPast && mayWrite() && button("Edit", "edit", () => this.edit(), { class: "edit" }),
        isFile && !isGone && this.#download(),
        isFile && !isGone && mayWrite() && button("Move", "move", () => this.#move()),
        !isGone && mayWrite() && button("Delete", "trash", () => this.#delete(), { class: "danger-quiet" }),
      ),
    );
  }

  /** A link to the bytes of the file. The server sends no more in one answer than its limit. */
  #download() {
    const { namespace, key, size } = this.subject;
    if (size > session.limits.body) return h("span", { class: "hint" }, `Too large for a download here (${bytes(session.limits.body)}): use the command holdall URL get PATH`);
    return h("a", { class: "button", href: fileAddress(namespace, key).href, download: fileName(key) }, icon("download"), "Download");
  }

  #facts() {
    const { version, created_at, updated_at, expires_at, size, isFile, vectors } = this.subject;
    const facts = [
      ["Version", version],
      isFile && ["Size", bytes(size)],
      ["Changed", h("time", { datetime: updated_at, title: moment(updated_at) }, age(updated_at))],
      ["Created", h("time", { datetime: created_at, title: moment(created_at) }, age(created_at))],
      !isFile && ["Expires", expires_at ? h("time", { datetime: expires_at, title: moment(expires_at) }, until(expires_at)) : "never"],
      vectors !== undefined && ["Vectors", vectors || "none"],
    ];
    return h("dl", { class: "facts" }, facts.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
  }

  async #copyLink() {
    await attempt(async () => {
      await navigator.clipboard.writeText(location.href);
      toast("The link to this view is copied.");
    });
  }

  toggleHistory() {
    if (!mayLookBack() || !state.entry) return;
    go({ tab: state.tab === "history" ? "" : "history" });
  }

  async edit() {
    if (!mayWrite() || !this.subject || this.subject.isGone || this.isEditing) return;
    if (state.tab) {
      go({ tab: "" });
      return;
    }
    const { Editor } = await import("./editor.js");
    const { subject } = this;
    const editor = await Editor.open(subject, () => this.#endEditor(editor));
    if (editor && this.subject === subject) this.#startEditor(editor);
  }

  #startEditor(editor) {
    this.editor = editor;
    fill(this.body, editor.element);
    editor.focus();
  }

  /** The text was saved or given up. */
  async #endEditor(editor) {
    const { namespace, key } = editor.subject;
    this.drafts.delete(encodeAddress(namespace, key));
    if (this.editor !== editor) return; // saved after another entry was opened
    this.editor = null;
    await this.show();
  }

  async #delete() {
    const { subject } = this;
    const { namespace, key, version, isFile } = subject;
    const canUndo = mayUndo();
    const name = isFile ? showFileName(key) : showName(key);
    const text = canUndo ? "Its history is kept, so this can be undone." : "This store keeps no history: it cannot be brought back.";
    if (!(await confirm(`Delete ${name}?`, text, "Delete"))) return;
    await attempt(async () => {
      if (isFile) await deleteFile(namespace, key, version);
      else await deleteEntry(namespace, key, version);
      const undo = async () => {
        await restore(subject, version, null);
        go({ entry: encodeAddress(namespace, key), tab: "" });
      };
      toast(`${name} is deleted.`, { undo: canUndo ? undo : null });
      go({ entry: "", tab: "" });
    });
  }

  async #move() {
    const { namespace, key, version } = this.subject;
    const target = await ask("Move or rename", "New path", key, "Move");
    if (!target || target === key) return;
    await attempt(async () => {
      const info = await moveFile(namespace, key, target, version);
      const undo = async () => {
        await moveFile(namespace, info.path, key, info.version);
        go({ entry: encodeAddress(namespace, key) });
      };
      toast(`It is now ${showName(info.path)}.`, { undo });
      go({ entry: encodeAddress(namespace, info.path) });
    });
  }

  /** The entry that is open has changed, or (null) it may have. */
  async onChange(change) {
    if (!this.subject) return;
    if (change && change.version === this.subject.version) return;
    if (this.isEditing) {
      this.note.hidden = false;
      this.note.textContent = `${change?.author ? showText(change.author) : "Somebody"} has changed this entry since you began to edit. Nothing is overwritten: when you save, you see both.`;
      return;
    }
    const scroll = this.body.scrollTop;
    await attempt(() => this.show());
    this.body.scrollTop = scroll;
    this.body.classList.remove("flash");
    requestAnimationFrame(() => this.body.classList.add("flash"));
  }
}

/** Read a file's description, or an item. A key may begin with "/" and be no file. */
async function read(namespace, key) {
  const [found, vectors] = await Promise.all([readEither(namespace, key), countVectors(namespace, key)]);
  return { ...found, vectors };
}

async function readEither(namespace, key) {
  if (key.startsWith("/")) {
    try {
      const info = await statFile(namespace, key);
      if (!info.is_dir) return { ...info, namespace, key, updated_at: info.modified_at, isFile: true };
    } catch (error) {
      if (error.status !== 404 && error.status !== 400) throw error;
    }
  }
  return { ...(await getEntry(namespace, key)), isFile: false };
}
