// Short messages at the bottom of the page.

import { h } from "../show/dom.js";

const LIFETIME = 8000; // milliseconds
let region;

export function startToasts() {
  region = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
  document.body.append(region);
}

/** Show a message; with `undo`, a button that calls it. */
export function toast(text, { undo, kind = "done" } = {}) {
  const close = () => box.remove();
  const undoIt = async () => {
    close();
    try {
      await undo();
    } catch (error) {
      toast(`It could not be undone. ${error.message}`, { kind: "error" });
    }
  };
  const box = h(
    "div",
    { class: `toast ${kind}` },
    h("span", {}, text),
    undo && h("button", { type: "button", onclick: undoIt }, "Undo"),
    h("button", { type: "button", class: "bare", "aria-label": "Dismiss", onclick: close }, "×"),
  );
  region.append(box);
  while (region.children.length > 3) region.firstChild.remove();
  setTimeout(close, kind === "error" ? LIFETIME * 2 : LIFETIME);
}

/** Whether a reader must know of an error: not of a request that was given up, nor of the end of the session. */
export const isForReader = (error) => error?.name !== "AbortError" && error?.status !== 401;

/** Run something that may fail, and show why it did. */
export async function attempt(run) {
  try {
    return await run();
  } catch (error) {
    if (isForReader(error)) toast(error.message, { kind: "error" });
    return undefined;
  }
}
