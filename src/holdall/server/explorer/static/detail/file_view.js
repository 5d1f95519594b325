// A file: text with line numbers and colours, markdown, an image, or bytes.

import { readFile, readLines } from "../data/api.js";
import { state } from "../shell/state.js";
import { button, emptyState, fill, h } from "../show/dom.js";
import { bytes, count, plural } from "../show/times.js";

const MOST_BYTES = 1_000_000; // read at first
const MOST_LINES = 2000; // drawn at first
const WIDE = 640; // pixels, from which on a line shows sixteen bytes, and not eight
const AROUND = 100; // lines before and after the one that an address names
/** The types of images by their first bytes. What a name claims does not count. */
const IMAGES = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]],
  ["image/bmp", [0x42, 0x4d]],
];
const SVG = "image/svg+xml";
let imageAddress = null;

/** Show a file, and return whether it is text. */
export async function showFile(element, file) {
  const wanted = state.entry;
  const content = await readFile(file.namespace, file.key, { most: MOST_BYTES, size: file.size });
  if (state.entry !== wanted) return true;
  if (imageAddress) URL.revokeObjectURL(imageAddress);
  imageAddress = null;
  return showContent(element, file, content);
}

async function showContent(element, file, content) {
  if (!content.length) {
    fill(element, emptyState("This file is empty.", "Edit it, or let an agent write to it."));
    return true;
  }
  const text = decode(content, content.length < file.size);
  const kind = text === null ? imageKind(content) : isSvg(file.key, text) ? SVG : null;
  const ways = [];
  if (kind) ways.push(["Image", () => showImage(content, kind)]);
  if (text !== null && /\.(md|markdown)$/i.test(file.key)) ways.push(["Rendered", () => showMarkdown(text)]);
  if (text !== null) ways.push(["Text", () => showText(text, file, content.length < file.size)]);
  ways.push(["Bytes", () => showBytes(content, element.clientWidth < WIDE ? 8 : 16)]);
  const body = h("div", { class: "file-body" });
  const tools = h("div", { class: "content-tools" });
  const choose = async (index) => {
    fill(
      tools,
      h("div", { class: "switch", role: "group", "aria-label": "Show as" }, ways.map(([name], other) => h("button", { type: "button", "aria-pressed": other === index, onclick: () => choose(other) }, name))),
      content.length < file.size && h("span", { class: "hint" }, `The first ${bytes(content.length)} of ${bytes(file.size)}. Download the file to see all of it.`),
    );
    fill(body, await ways[index][1]());
  };
  fill(element, tools, body);
  const line = Number(state.line);
  await choose(line ? ways.findIndex(([name]) => name === "Text") : 0);
  if (line) markLine(body, line);
  return text !== null;
}

/** The text of bytes; null if they are not UTF-8. A character that was cut off at the end is left out. */
export function decode(content, isCut) {
  const end = isCut ? content.length - 4 : content.length;
  for (const size of isCut ? [end, end + 1, end + 2, end + 3] : [end]) {
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(content.subarray(0, size));
      return text.includes("\0") ? null : text;
    } catch {
      // the cut was inside a character, or it is not text
    }
  }
  return null;
}

function imageKind(content) {
  return IMAGES.find(([, start]) => start.every((byte, index) => content[index] === byte))?.[0] ?? null;
}

const isSvg = (path, text) => /\.svg$/i.test(path) && text.includes("<svg");

function showImage(content, kind) {
  if (imageAddress) URL.revokeObjectURL(imageAddress);
  imageAddress = URL.createObjectURL(new Blob([content], { type: kind }));
  const image = h("img", { class: "stored-image", alt: "The stored image", src: imageAddress });
  const frame = h("div", { class: "image-frame" }, kind === SVG ? null : image);
  image.addEventListener("error", () => fill(frame, emptyState("This image cannot be drawn.", "Look at its bytes, or download it.")));
  if (kind === SVG) image.addEventListener("load", () => fill(frame, draw(image)));
  return frame;
}

/**
 * Draw an SVG on a canvas. An image element runs no script of an SVG, but its address would, if somebody opened it in a
 * tab. So the address is revoked, and only pixels stay.
 */
function draw(image) {
  const size = [image.naturalWidth || 300, image.naturalHeight || 150];
  const scale = Math.min(4, 2000 / Math.max(...size)) || 1;
  const canvas = h("canvas", { class: "stored-image", role: "img", "aria-label": "The stored image", width: Math.ceil(size[0] * scale), height: Math.ceil(size[1] * scale) });
  canvas.style.width = `${size[0]}px`;
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(imageAddress);
  imageAddress = null;
  return canvas;
}

async function showMarkdown(text) {
  const { renderMarkdown } = await import("../show/markdown.js");
  return h("div", { class: "markdown" }, renderMarkdown(text));
}

async function showText(text, file, isCut) {
  const { colour } = await import("../show/syntax.js");
  const lines = colour(text, file.key);
  if (lines.length > 1 && text.endsWith("\n")) lines.pop();
  const code = h("ol", { class: "code" });
  const append = (some, first) => code.append(...some.map((line, index) => h("li", { dataset: { line: String(first + index) } }, h("code", {}, line))));
  const line = Number(state.line) || 0;
  if (isCut && line >= lines.length) {
    const first = line - AROUND;
    append(await readLines(file.namespace, file.key, first - 1, AROUND * 2), first);
    return [h("p", { class: "hint" }, `Lines from ${count(first)} on.`), code];
  }
  const add = (start, end) => append(lines.slice(start, end), start + 1);
  const wanted = Math.max(MOST_LINES, line + AROUND);
  add(0, wanted);
  const left = lines.length - wanted;
  const more = left > 0 && button(`Show ${plural(left, "more line")}`, null, () => (more.remove(), add(wanted, lines.length)), { class: "link" });
  return [code, more];
}

function markLine(body, number) {
  const line = body.querySelector(`[data-line="${number}"]`);
  line?.classList.add("is-marked");
  line?.scrollIntoView({ block: "center" });
}

async function showBytes(content, width) {
  const { hexView } = await import("../show/hex.js");
  return hexView(content, width);
}
