// The versions of an entry, newest first: what each changed, beside the version before it, and a way back.

import { readFile, restore, versions } from "../data/api.js";
import { showText } from "../data/names.js";
import { mayWrite } from "../shell/session.js";
import { addressOf, state } from "../shell/state.js";
import { attempt, toast } from "../shell/toasts.js";
import { sideBySide } from "../show/differences.js";
import { button, emptyState, fill, h } from "../show/dom.js";
import { age, bytes, count, moment } from "../show/times.js";
import { decode } from "./file_view.js";

export const KINDS = { put: "written", delete: "deleted", expire: "expired" };

const PAGE = 100; // versions
const MOST = 1000; // that one answer has
const LARGEST = 1_000_000; // bytes of a version that are compared

export async function showTimeline(element, subject, onRestored, limit = state.version ? MOST : PAGE) {
  const wanted = state.entry;
  const read = await versions(subject.namespace, subject.key, limit);
  if (state.entry !== wanted || state.tab !== "history") return;
  const found = read.slice(0, limit - 1); // one more is read: each is compared with the one before it
  if (!found.length) {
    fill(element, emptyState("No history is kept of this entry.", "A store keeps old values from the moment it is opened with history=."));
    return;
  }
  const isFile = areOfFile(found);
  const comparison = h("div", { class: "comparison" });
  const items = found.map((version, index) => {
    const item = h(
      "li",
      {},
      h(
        "button",
        { type: "button", class: "revision", onclick: () => attempt(() => choose(index)) },
        h("span", { class: `kind ${version.kind}` }, KINDS[version.kind]),
        h("span", { class: "revision-when", title: moment(version.time) }, age(version.time)),
        h("span", { class: "hint" }, describe(version)),
      ),
    );
    return item;
  });
  let chosen = null;
  const choose = async (index) => {
    chosen = index;
    items.forEach((item, other) => item.firstChild.setAttribute("aria-pressed", other === index));
    const version = found[index];
    const before = read[index + 1];
    const [left, right] = await Promise.all([textOf(subject, before, isFile), textOf(subject, version, isFile)]);
    if (chosen !== index) return; // another was chosen meanwhile
    const canRestore = mayWrite() && version.kind === "put" && index > 0;
    const bringBack = () =>
      attempt(async () => {
        const current = found[0].kind === "put" ? found[0].version : null;
        const restored = await restore({ ...subject, isFile }, version.version, current);
        const undo = current === null ? null : () => restore({ ...subject, isFile }, current, restored.version).then(onRestored);
        toast(`Version ${version.version} is back.`, { undo });
        await onRestored();
      });
    fill(
      comparison,
      sideBySide(left, right, before ? `Before (version ${before.version})` : "Before: nothing", `Version ${version.version}, ${moment(version.time)}`),
      h(
        "div",
        { class: "editor-tools" },
        canRestore && button("Restore this version", "history", bringBack, { class: "primary" }),
        h("a", { class: "button", href: addressOf({ at: version.time, tab: "" }) }, "See the whole store at this moment"),
      ),
    );
  };
  fill(element, h("ol", { class: "timeline", "aria-label": "Versions" }, items, read.length === limit && h("li", {}, older())), comparison);
  function older() {
    if (limit === MOST) return h("span", { class: "hint" }, `These are the newest ${count(found.length)} versions.`);
    return button("Show older versions", null, () => attempt(() => showTimeline(element, subject, onRestored, MOST)), { class: "link" });
  }
  await choose(Math.max(0, found.findIndex((version) => String(version.version) === state.version)));
}

/** A version in a few words: its number, its author, the reason, and the size of a file. */
export function describe({ version, author, reason, size, kind }) {
  return [`version ${version}`, author && `by ${showText(author)}`, reason && showText(reason), size !== null && kind === "put" && bytes(size)].filter(Boolean).join(" · ");
}

/** Whether these are the versions of a file. */
export function areOfFile(found) {
  return found.some((version) => version.size !== null && version.value === null && version.kind === "put");
}

/** The text of a version: of an item its JSON, of a file its content. */
export async function textOf(subject, version, isFile) {
  if (!version || version.kind !== "put") return "";
  if (!isFile) return JSON.stringify(version.value, null, 2);
  const { size } = version;
  const content = await readFile(subject.namespace, subject.key, { version: version.version, size, most: LARGEST });
  const text = decode(content, content.length < size);
  if (text === null) return `(version ${version.version}: ${bytes(size)} that are not text)`;
  return content.length < size ? `${text}\n(${bytes(size - content.length)} more are not compared)` : text;
}
