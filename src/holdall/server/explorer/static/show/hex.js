// Bytes as numbers and characters.

import { button, h } from "./dom.js";

const MOST_LINES = 1000; // added at a time

/** Show bytes, `width` of them in a line. */
export function hexView(content, width) {
  const text = h("pre", { class: "hex", tabindex: "0", "aria-label": "Bytes" });
  const box = h("div", {}, text);
  const add = (start) => {
    const lines = [];
    const end = Math.min(content.length, start + MOST_LINES * width);
    for (let at = start; at < end; at += width) lines.push(line(content.subarray(at, Math.min(at + width, content.length)), at, width));
    text.append(`${lines.join("\n")}\n`);
    if (end < content.length) {
      const more = button("Show more bytes", null, () => (more.remove(), add(end)), { class: "link" });
      box.append(more);
    }
  };
  add(0);
  return box;
}

function line(part, at, width) {
  const numbers = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  const characters = Array.from(part, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
  return `${at.toString(16).padStart(8, "0")}  ${numbers.padEnd(width * 3 - 1)}  ${characters}`;
}
