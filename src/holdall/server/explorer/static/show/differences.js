// The difference between two texts, line by line, side by side.

import { showText } from "../data/names.js";
import { h } from "./dom.js";
import { count } from "./times.js";

const MOST_LINES = 4000; // longer texts are shown without a comparison
const AROUND = 3; // equal lines shown around a difference
const MOST_ROWS = 2000; // drawn: a browser needs seconds for more
const LONGEST = 5000; // characters of a line

/** Pairs of lines: [left, right], where null is a line that the other side does not have. */
export function compareLines(left, right) {
  const a = left ? left.split("\n") : [];
  const b = right ? right.split("\n") : [];
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a.at(-1 - end) === b.at(-1 - end)) end++;
  const same = (lines) => lines.map((line) => [line, line]);
  const middle = align(a.slice(start, a.length - end), b.slice(start, b.length - end));
  return [...same(a.slice(0, start)), ...middle, ...same(end ? a.slice(-end) : [])];
}

/** Align by the longest common subsequence. */
function align(a, b) {
  if (a.length * b.length > MOST_LINES * MOST_LINES) return [...a.map((line) => [line, null]), ...b.map((line) => [null, line])];
  const width = b.length + 1;
  const lengths = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      lengths[i * width + j] = a[i] === b[j] ? lengths[(i + 1) * width + j + 1] + 1 : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1]);
    }
  }
  const pairs = [];
  let removed = [];
  let added = [];
  const flush = () => {
    for (let n = 0; n < Math.max(removed.length, added.length); n++) pairs.push([removed[n] ?? null, added[n] ?? null]);
    removed = [];
    added = [];
  };
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      flush();
      pairs.push([a[i++], b[j++]]);
    } else if (j >= b.length || (i < a.length && lengths[(i + 1) * width + j] >= lengths[i * width + j + 1])) removed.push(a[i++]);
    else added.push(b[j++]);
  }
  flush();
  return pairs;
}

function shorten(line) {
  if (line === null) return "";
  const cut = line.length > LONGEST ? ` … (${count(line.length - LONGEST)} characters more)` : "";
  return showText(line.slice(0, LONGEST)) + cut;
}

/** A table of two texts. Long equal parts are left out. */
export function sideBySide(left, right, leftName, rightName) {
  const pairs = compareLines(left, right);
  const isNear = pairs.map(() => false);
  pairs.forEach(([one, other], index) => {
    if (one !== other) for (let n = index - AROUND; n <= index + AROUND; n++) if (n in isNear) isNear[n] = true;
  });
  const body = h("tbody");
  let skipped = 0;
  let hidden = 0;
  const addGap = () => {
    if (skipped) body.append(h("tr", { class: "gap" }, h("td", { colspan: "4" }, `${skipped} equal ${skipped === 1 ? "line" : "lines"}`)));
    skipped = 0;
  };
  const numbers = [0, 0];
  pairs.forEach(([one, other], index) => {
    if (one !== null) numbers[0]++;
    if (other !== null) numbers[1]++;
    if (!isNear[index]) {
      skipped++;
      return;
    }
    addGap();
    if (body.children.length >= MOST_ROWS) {
      hidden++;
      return;
    }
    const isEqual = one === other;
    body.append(
      h(
        "tr",
        {},
        h("td", { class: "number" }, one === null ? "" : numbers[0]),
        h("td", { class: isEqual ? "" : one === null ? "none" : "removed" }, shorten(one)),
        h("td", { class: "number" }, other === null ? "" : numbers[1]),
        h("td", { class: isEqual ? "" : other === null ? "none" : "added" }, shorten(other)),
      ),
    );
  });
  addGap();
  if (hidden) body.append(h("tr", { class: "gap" }, h("td", { colspan: "4" }, `${count(hidden)} more lines are not shown`)));
  const head = h("thead", {}, h("tr", {}, h("th", { colspan: "2", scope: "col" }, leftName), h("th", { colspan: "2", scope: "col" }, rightName)));
  return h("div", { class: "diff", tabindex: "0", role: "region", "aria-label": `${leftName} and ${rightName}` }, h("table", {}, h("colgroup", {}, ["number", "text", "number", "text"].map((name) => h("col", { class: name }))), head, body));
}
