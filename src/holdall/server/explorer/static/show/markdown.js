// Markdown as nodes. It makes elements of a fixed list, with texts as text nodes: HTML in a text stays text, a link
// leads only to http, https or mailto, and images are shown as links, so nothing is loaded from elsewhere.

import { h } from "./dom.js";

const LONGEST = 5000; // characters of a paragraph: the cost of the pattern grows with their square
const SAFE = /^(https?:|mailto:)/i;
const INLINE = /(`+)(?<code>[\s\S]+?)\1|!\[(?<alt>[^\]]*)\]\((?<image>[^)\s]+)(?:\s[^)]*)?\)|\[(?<text>[^\]]+)\]\((?<target>[^)\s]+)(?:\s[^)]*)?\)|<(?<auto>https?:[^>\s]+)>|\*\*(?<bold>[^*]+)\*\*|__(?<strong>[^_]+)__|\*(?<italic>[^*\s][^*]*)\*|(?<![\w])_(?<emphasis>[^_\s][^_]*)_(?![\w])|~~(?<gone>[^~]+)~~/g;

/** The nodes of a text in markdown. */
export function renderMarkdown(text) {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const [node, next] = block(lines, at, depth);
    if (node) nodes.push(node);
    at = next;
  }
  return nodes;
}

function block(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [null, at + 1];
  const fence = /^ {0,3}(`{3,}|~{3,})/.exec(line);
  if (fence) return codeBlock(lines, at, fence[1]);
  const heading = /^ {0,3}(#{1,6})\s([\s\S]*)/.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + 2)}`, {}, inline(heading[2].trim().replace(/(^|\s)#+$/, "").trimEnd())), at + 1];
  if (/^ {0,3}([-*_])\s*(\1\s*){2,}$/.test(line)) return [h("hr"), at + 1];
  if (/^ {0,3}>/.test(line) && depth < 8) return quote(lines, at, depth);
  if (marker(line) && depth < 8) return list(lines, at, depth);
  if (line.includes("|") && isRule(lines[at + 1] ?? "")) return table(lines, at);
  return paragraph(lines, at);
}

/** Whether a line parts the head of a table from its rows. */
const isRule = (line) => line.includes("-") && /^[\s|:-]*$/.test(line);

function codeBlock(lines, at, fence) {
  let end = at + 1;
  while (end < lines.length && !lines[end].trim().startsWith(fence)) end++;
  return [h("pre", { tabindex: "0" }, h("code", {}, lines.slice(at + 1, end).join("\n"))), end + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) end++;
  const inside = lines.slice(at, end).map((line) => line.replace(/^ {0,3}> ?/, ""));
  return [h("blockquote", {}, blocks(inside, depth + 1)), end];
}

const marker = (line) => /^(\s*)([-*+]|\d{1,9}[.)])\s+/.exec(line);

function list(lines, at, depth) {
  const [, indent, first] = marker(lines[at]);
  const isOrdered = /\d/.test(first);
  const items = [];
  while (at < lines.length) {
    const found = marker(lines[at]);
    if (!found || found[1].length !== indent.length || /\d/.test(found[2]) !== isOrdered) break;
    const width = found[0].length;
    const inside = [lines[at].slice(width)];
    at++;
    while (at < lines.length && (lines[at].startsWith(" ".repeat(Math.min(width, indent.length + 2))) ? lines[at].trim() : isBlankInside(lines, at, indent.length + 2))) {
      inside.push(lines[at].slice(Math.min(width, lines[at].length - lines[at].trimStart().length)));
      at++;
    }
    items.push(item(inside, depth));
  }
  return [h(isOrdered ? "ol" : "ul", {}, items), at];
}

const isBlankInside = (lines, at, width) => !lines[at].trim() && (lines[at + 1] ?? "").startsWith(" ".repeat(width)) && lines[at + 1].trim();

function item(lines, depth) {
  const task = /^\[([ xX])\]\s+/.exec(lines[0]);
  if (task) lines[0] = lines[0].slice(task[0].length);
  const isSimple = lines.length === 1;
  const content = isSimple ? inline(lines[0]) : blocks(lines, depth + 1);
  const isDone = task && task[1] !== " ";
  return h("li", { class: task ? "task" : null }, task && h("span", { role: "img", "aria-label": isDone ? "done" : "to do", class: isDone ? "box done" : "box" }), content);
}

function table(lines, at) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
  const head = cells(lines[at]);
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) end++;
  const rows = lines.slice(at + 2, end).map((line) => h("tr", {}, cells(line).map((cell) => h("td", {}, cell))));
  return [h("table", {}, h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col" }, cell)))), h("tbody", {}, rows)), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !/^ {0,3}(#{1,6}\s|>|`{3}|~{3})/.test(lines[end]) && !marker(lines[end])) end++;
  return [h("p", {}, inline(lines.slice(at, end).join("\n"))), end];
}

/** The nodes of a text with emphasis, code and links. */
function inline(text) {
  if (text.length > LONGEST) return [text];
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    nodes.push(text.slice(end, match.index), element(match));
    end = match.index + match[0].length;
  }
  nodes.push(text.slice(end));
  return nodes;
}

function element({ 0: whole, groups }) {
  if (groups.code !== undefined) return h("code", {}, groups.code.trim() || groups.code);
  if (groups.image !== undefined) return link(groups.image, `Image: ${groups.alt || groups.image}`, whole);
  if (groups.target !== undefined) return link(groups.target, inline(groups.text), whole);
  if (groups.auto !== undefined) return link(groups.auto, groups.auto, whole);
  const bold = groups.bold ?? groups.strong;
  if (bold !== undefined) return h("strong", {}, inline(bold));
  if (groups.gone !== undefined) return h("del", {}, inline(groups.gone));
  return h("em", {}, inline(groups.italic ?? groups.emphasis));
}

/** A link to a safe address; for any other, the text as it was written. */
function link(target, content, whole) {
  if (!SAFE.test(target)) return whole;
  return h("a", { href: target, rel: "noopener noreferrer nofollow", target: "_blank" }, content);
}
