// Bytes as numbers and characters, sixteen in a line.

import { button, h } from "./dom.js";

const WIDTH = 16;
const MOST_LINES = 1000; // added at a time

export function hexView(content) {
  const text = h("pre", { class: "hex", tabindex: "0", "aria-label": "Bytes" });
  const box = h("div", {}, text);
  const add = (start) => {
    const lines = [];
    const end = Math.min(content.length, start + MOST_LINES * WIDTH);
    for (let at = start; at < end; at += WIDTH) lines.push(line(content.subarray(at, Math.min(at + WIDTH, content.length)), at));
    text.append(`${lines.join("\n")}\n`);
    if (end < content.length) {
      const more = button("Show more bytes", null, () => (more.remove(), add(end)), { class: "link" });
      box.append(more);
    }
  };
  add(0);
  return box;
}

function line(part, at) {
  const numbers = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  const characters = Array.from(part, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
  return `${at.toString(16).padStart(8, "0")}  ${numbers.padEnd(WIDTH * 3 - 1)}  ${characters}`;
}
