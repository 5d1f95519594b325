// The files of a namespace as folders: open, find lines, upload, make, delete.

import { deleteFolder, folderVersions, grep, listFolder, readLines, writeFile } from "../data/api.js";
import { encodeAddress, isSame, showFileName, showName } from "../data/names.js";
import { ask, confirm } from "../shell/dialogs.js";
import { mayLookBack, mayUndo, mayWrite } from "../shell/session.js";
import { addressOf, go, state } from "../shell/state.js";
import { attempt, toast } from "../shell/toasts.js";
import { button, debounce, emptyState, fill, h, icon } from "../show/dom.js";
import { age, bytes, count, moment, plural } from "../show/times.js";

const CONTEXT = 2; // lines before and after a match
const MOST_CONTEXT = 50; // groups of matches that are shown with their context
const MOST_VERSIONS = 500; // of a folder

export class FolderList {
  constructor() {
    this.path = h("nav", { class: "crumbs", "aria-label": "Folder" });
    this.pattern = h("input", { type: "search", placeholder: "Find lines in these files", "aria-label": "Find lines in these files", spellcheck: "false", oninput: debounce(250, () => attempt(() => this.#grep())) });
    this.regex = h("input", { type: "checkbox", onchange: () => attempt(() => this.#grep()) });
    this.ignoreCase = h("input", { type: "checkbox", checked: true, onchange: () => attempt(() => this.#grep()) });
    this.input = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to upload", onchange: () => this.#upload(this.input.files) });
    this.actions = h("div", { class: "actions" });
    this.list = h("div", { class: "folder-body" });
    this.element = h(
      "div",
      { class: "folder" },
      h("div", { class: "folder-head" }, this.path, this.actions, this.input),
      (this.grepField = h("div", { class: "grep-field" }, this.pattern, h("label", { class: "check" }, this.ignoreCase, "Ignore case"), h("label", { class: "check" }, this.regex, "Regular expression"))),
      this.list,
    );
    this.element.addEventListener("dragover", (event) => {
      if (!mayWrite()) return;
      event.preventDefault();
      this.element.classList.add("is-target");
    });
    this.element.addEventListener("dragleave", () => this.element.classList.remove("is-target"));
    this.element.addEventListener("drop", (event) => {
      event.preventDefault();
      this.element.classList.remove("is-target");
      if (mayWrite()) this.#upload(event.dataTransfer.files);
    });
    this.list.addEventListener("keydown", (event) => this.#onKey(event));
  }

  async show() {
    this.abort?.abort();
    this.pattern.value = "";
    const steps = ["/", ...(state.folder.match(/[^/]+\//g) ?? [])];
    let whole = "";
    fill(this.path, h("ol", {}, steps.map((step, index) => {
      whole += step;
      return h("li", {}, h("a", { href: addressOf({ folder: whole, entry: "" }), "aria-current": index === steps.length - 1 ? "true" : null }, index ? showFileName(step) : "Files"));
    })));
    const isPast = this.#isTimeline();
    this.grepField.hidden = isPast;
    fill(
      this.actions,
      mayLookBack() && button(isPast ? "Back to the files" : "History", isPast ? "folder" : "history", () => go({ list: isPast ? "" : "history", entry: "" }), { "aria-pressed": isPast }),
      mayWrite() && button("Upload", "upload", () => this.input.click()),
      mayWrite() && button("New file", "plus", () => this.#create()),
      mayWrite() && state.folder !== "/" && button("Delete folder", "trash", () => this.#deleteFolder(), { class: "danger-quiet" }),
    );
    await this.refresh();
  }

  async refresh() {
    if (this.pattern.value) {
      await this.#grep();
      return;
    }
    if (this.#isTimeline()) {
      await this.#showTimeline();
      return;
    }
    const { ns, folder } = state;
    let page;
    try {
      page = await listFolder(ns, folder);
    } catch (error) {
      if (error.status !== 404) throw error;
      page = { files: [], next: null };
    }
    if (!this.#isHere(ns, folder) || this.pattern.value) return;
    const rows = page.files.map((info) => this.#row(info));
    if (!rows.length) {
      fill(this.list, emptyState("There are no files here.", mayWrite() ? "Drop some on this page, or upload them." : "Files appear here as soon as an agent writes them."));
      return;
    }
    fill(this.list, h("ul", { class: "files" }, rows), this.#more(page.next));
    this.markSelected();
  }

  /** Whether the page still shows a folder that was asked for. */
  #isHere(ns, folder) {
    return isSame(state.ns, ns) && state.folder === folder;
  }

  #isTimeline() {
    return state.list === "history" && mayLookBack();
  }

  /** What happened to the files below this folder, newest first. */
  async #showTimeline() {
    const { ns, folder } = state;
    const [found, { KINDS, describe }] = await Promise.all([folderVersions(ns, folder, MOST_VERSIONS), import("../detail/timeline.js")]);
    if (!this.#isHere(ns, folder) || !this.#isTimeline()) return;
    if (!found.length) {
      fill(this.list, emptyState("No history is kept of this folder.", "A store keeps old values from the moment it is opened with history=."));
      return;
    }
    const rows = found.map((version) => {
      const address = encodeAddress(state.ns, version.path);
      return h(
        "li",
        {},
        h(
          "a",
          { class: "file-row", href: addressOf({ entry: address, tab: "history", version: String(version.version), pane: "" }), dataset: { address, version: version.version } },
          h("span", { class: `kind ${version.kind}` }, KINDS[version.kind]),
          h("span", { class: "file-name" }, showName(version.path.slice(folder.length))),
          h("span", { class: "hint" }, describe(version)),
          h("time", { class: "hint", datetime: version.time, title: moment(version.time) }, age(version.time)),
        ),
      );
    });
    const number = found.length === MOST_VERSIONS ? `The newest ${count(MOST_VERSIONS)} changes` : plural(found.length, "change");
    fill(this.list, h("p", { class: "hint grep-title", role: "status" }, `${number} of files here and below, newest first`), h("ul", { class: "files folder-timeline" }, rows));
    this.markSelected();
  }

  #more(after) {
    if (!after) return null;
    const more = button("Show more", null, () => attempt(async () => {
      const page = await listFolder(state.ns, state.folder, after);
      if (!more.isConnected) return;
      this.list.querySelector(".files").append(...page.files.map((info) => this.#row(info)));
      more.replaceWith(this.#more(page.next) ?? "");
    }));
    return more;
  }

  #row(info) {
    const address = info.is_dir ? "" : encodeAddress(state.ns, info.path);
    const target = info.is_dir ? { folder: info.path, entry: "", pane: "main" } : { entry: address, tab: "", line: "", pane: "" };
    return h(
      "li",
      {},
      h(
        "a",
        { class: "file-row", href: addressOf(target), dataset: { address } },
        icon(info.is_dir ? "folder" : "file"),
        h("span", { class: "file-name" }, showFileName(info.path)),
        h("span", { class: "hint" }, info.is_dir ? "" : bytes(info.size)),
        h("span", { class: "hint", title: info.modified_at ? moment(info.modified_at) : null }, info.modified_at ? age(info.modified_at) : ""),
      ),
    );
  }

  markSelected() {
    for (const row of this.list.querySelectorAll("[data-address]")) {
      const { address, version } = row.dataset;
      row.classList.toggle("is-selected", address !== "" && address === state.entry && (version ?? state.version) === state.version);
    }
  }

  // Finding lines -----------------------------------------------------------------------------------------------------

  async #grep() {
    this.abort?.abort();
    const pattern = this.pattern.value;
    if (!pattern) {
      await this.refresh();
      return;
    }
    this.abort = new AbortController();
    const { signal } = this.abort;
    const options = { pattern, path: state.folder, regex: this.regex.checked, ignoreCase: this.ignoreCase.checked, signal };
    const found = await grep(state.ns, options);
    if (signal.aborted) return;
    if (!found.matches.length) {
      fill(this.list, emptyState("No line matches.", "Try another text, or a higher folder."));
      return;
    }
    const byPath = Map.groupBy(found.matches, (match) => match.path);
    const title = `${plural(found.matches.length, "line")}${found.more ? ", and more," : ""} in ${plural(byPath.size, "file")}`;
    fill(this.list, h("p", { class: "hint grep-title", role: "status" }, title), [...byPath].map(([path, matches]) => this.#matches(path, matches)));
    await this.#addContext(found.matches, signal);
  }

  #matches(path, matches) {
    const boxes = joinNear(matches).map((near) => h("ol", { class: "code grep-lines", dataset: { at: `${path}:${near[0].line}` } }, near.map((match) => this.#line(match, true))));
    const address = encodeAddress(state.ns, path);
    return h("section", { class: "grep-file" }, h("h2", {}, h("a", { href: addressOf({ entry: address, line: "", pane: "" }) }, showName(path))), boxes);
  }

  #line({ path, line, text }, isMatch) {
    const target = addressOf({ entry: encodeAddress(state.ns, path), line: String(line), pane: "" });
    const content = isMatch ? h("a", { href: target }, text) : text;
    return h("li", { class: isMatch ? "is-match" : null, dataset: { line: String(line) } }, h("code", {}, content));
  }

  async #addContext(matches, signal) {
    for (const near of joinNear(matches).slice(0, MOST_CONTEXT)) {
      const { path, line } = near[0];
      const first = Math.max(0, line - 1 - CONTEXT);
      const lines = await readLines(state.ns, path, first, near.at(-1).line + CONTEXT - first);
      if (signal.aborted) return;
      const box = this.list.querySelector(`[data-at="${CSS.escape(`${path}:${line}`)}"]`);
      const found = new Map(near.map((match) => [match.line, match]));
      const rows = lines.map((text, index) => found.get(first + index + 1) ?? { path, line: first + index + 1, text });
      if (box) fill(box, rows.map((row) => this.#line(row, found.has(row.line))));
    }
  }

  // Changing ----------------------------------------------------------------------------------------------------------

  async #upload(files) {
    const { ns, folder } = state; // the reader may go on while files are sent
    for (const file of [...files]) await attempt(() => this.#write(ns, folder + file.name, file));
    this.input.value = "";
    await attempt(() => this.refresh());
  }

  async #write(ns, path, content) {
    try {
      await writeFile(ns, path, content, null);
    } catch (error) {
      if (error.status !== 412) throw error;
      const text = mayUndo() ? "There is a file with this name. Its old content stays in its history." : "There is a file with this name. Its content would be lost.";
      if (!(await confirm(`Replace ${showFileName(path)}?`, text, "Replace"))) return false;
      await writeFile(ns, path, content, error.document.actual);
    }
    toast(`${showName(path)} is stored.`);
    return true;
  }

  async #create() {
    const { ns, folder } = state;
    const name = await ask("New file", `Name, in ${showName(folder)}`, "notes.md", "Create");
    if (!name) return;
    const path = folder + name.replace(/^\/+/, "");
    await attempt(async () => {
      if (await this.#write(ns, path, "")) go({ entry: encodeAddress(ns, path), tab: "" });
    });
    await attempt(() => this.refresh());
  }

  async #deleteFolder() {
    const { ns, folder } = state;
    const text = mayUndo() ? "Everything in it is deleted. The history of each file is kept." : "Everything in it is deleted, and cannot be brought back.";
    if (!(await confirm(`Delete ${showName(folder)}?`, text, "Delete folder"))) return;
    await attempt(async () => {
      await deleteFolder(ns, folder.slice(0, -1));
      toast(`${showName(folder)} is deleted.`);
      go({ folder: folder.replace(/[^/]+\/$/, ""), entry: "" });
    });
  }

  #onKey(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (!step) return;
    const rows = [...this.list.querySelectorAll("a")];
    event.preventDefault();
    rows[rows.indexOf(document.activeElement) + step]?.focus();
  }
}

/** Group matches whose contexts touch: they are shown as one piece of their file. */
function joinNear(matches) {
  const groups = [];
  for (const match of matches) {
    const last = groups.at(-1)?.at(-1);
    if (last?.path === match.path && match.line - last.line <= CONTEXT * 2 + 1) groups.at(-1).push(match);
    else groups.push([match]);
  }
  return groups;
}
