// Edits an item or a text file. A save names the version that was read: if somebody changed the entry meanwhile, both
// are shown, and nobody is overwritten.

import { getEntry, putEntry, readFile, restore, statFile, writeFile } from "../data/api.js";
import { showJson } from "../data/names.js";
import { mayUndo } from "../shell/session.js";
import { attempt, toast } from "../shell/toasts.js";
import { sideBySide } from "../show/differences.js";
import { button, fill, h } from "../show/dom.js";

const LARGEST = 2_000_000; // bytes of a file that can be edited here

export class Editor {
  /** Make an editor of an entry; null if it cannot be edited as text. */
  static async open(subject, onDone) {
    const text = await attempt(() => readText(subject, subject.size));
    return text === undefined ? null : new Editor(subject, text, onDone);
  }

  constructor(subject, text, onDone) {
    Object.assign(this, { subject, onDone, version: subject.version });
    this.field = h("textarea", { class: "editor", spellcheck: "false", "aria-label": "Content", "aria-describedby": "editor-error", oninput: () => this.#validate() });
    this.#edit(text);
    this.original = this.field.value;
    this.error = h("p", { class: "field-error", id: "editor-error", role: "alert" });
    this.saveButton = button("Save", null, () => this.save(), { class: "primary" });
    this.tools = h("div", { class: "editor-tools" }, this.saveButton, button("Cancel", null, onDone), h("span", { class: "hint" }, "Ctrl+Enter saves"));
    this.conflict = h("div", { class: "conflict", hidden: true });
    this.element = h("div", { class: "editing" }, this.conflict, this.field, this.error, this.tools);
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.save();
      if (event.key === "Escape" && !this.isChanged) {
        event.stopPropagation();
        onDone();
      }
    });
  }

  /** Whether the text is another than the one that was read. */
  get isChanged() {
    return this.field.value !== this.original;
  }

  /** Let the field have a text. It shows every end of a line as "\n". */
  #edit(text) {
    this.lineEnd = text.includes("\r") ? "\r\n" : "\n";
    this.field.value = text;
  }

  focus() {
    this.field.focus();
    this.field.setSelectionRange(0, 0);
  }

  /** Whether the text can be saved; says why not. */
  #validate() {
    const problem = this.subject.isFile ? "" : findProblem(this.field.value);
    this.error.textContent = problem;
    this.saveButton.disabled = Boolean(problem);
    return !problem;
  }

  async save() {
    if (!this.#validate()) return;
    this.saveButton.disabled = true;
    try {
      await this.#write();
    } catch (error) {
      if (error.status === 412 || error.status === 404) await attempt(() => this.#showConflict());
      else toast(error.message, { kind: "error" });
    } finally {
      this.saveButton.disabled = false;
    }
  }

  async #write() {
    const { namespace, key, isFile } = this.subject;
    const replaced = this.version; // after a conflict, not the version that was opened
    const written = isFile
      ? await writeFile(namespace, key, this.field.value.replaceAll("\n", this.lineEnd), replaced)
      : await putEntry(namespace, key, this.field.value, replaced);
    const undo = async () => {
      await restore(this.subject, replaced, written.version);
      await this.onDone();
    };
    toast("Saved.", { undo: mayUndo() && replaced !== null ? undo : null });
    await this.onDone();
  }

  /** Show what is stored now beside what was typed. The next save names the version that is shown. */
  async #showConflict() {
    const { namespace, key, isFile } = this.subject;
    let theirs = "";
    try {
      const now = isFile ? await statFile(namespace, key) : await getEntry(namespace, key);
      theirs = await readText({ ...this.subject, ...now }, now.size);
      this.version = now.version;
    } catch (error) {
      if (error.status !== 404) throw error;
      this.version = null;
    }
    const takeTheirs = () => {
      this.#edit(theirs);
      this.#validate();
      this.conflict.hidden = true;
      this.field.focus();
    };
    this.conflict.hidden = false;
    fill(
      this.conflict,
      h("h3", {}, this.version === null ? "It was deleted while you edited" : "It was changed while you edited"),
      h("p", {}, "Nothing was saved. Compare both, edit your text below if you like, and save again: then yours replaces what you see here, and nothing newer."),
      sideBySide(theirs.replaceAll("\r\n", "\n"), this.field.value, "Stored now", "Yours"),
      h("div", { class: "editor-tools" }, this.version !== null && button("Start from the stored text", null, takeTheirs), button("Save mine over it", null, () => this.save(), { class: "danger" }), button("Keep what is stored", null, this.onDone)),
    );
    this.conflict.scrollIntoView({ block: "nearest" });
  }
}

async function readText({ namespace, key, isFile, value, version }, size) {
  if (!isFile) return showJson(value, 2);
  if (size > LARGEST) throw new Error("This file is too large to be edited here. Download it, and upload it again.");
  const content = await readFile(namespace, key, { size });
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(content);
  } catch {
    throw new Error(`Version ${version} of this file is not text, and cannot be edited here.`);
  }
  // A text field has "\n" only. What it cannot give back as it was, it does not get.
  const rest = text.replaceAll("\r\n", "");
  if (rest.includes("\r") || (rest !== text && rest.includes("\n"))) throw new Error("The lines of this file end in different ways. Editing it here would change them: download it, and upload it again.");
  return text;
}

/** What is wrong with the text of an item, for people; "" if it can be saved. */
export function findProblem(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    const position = /position (\d+)/.exec(error.message);
    const line = position ? text.slice(0, Number(position[1])).split("\n").length : 0;
    return `This is not JSON${line ? `: look at line ${line}` : ""}. ${error.message}`;
  }
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
  return isObject ? "" : "An entry is a JSON object, in braces: { … }";
}
