// Starts the page: the session, the frame, and the view that the address names.

import { status, startChanges } from "../data/changes.js";
import { Frame } from "./frame.js";
import { startKeyboard } from "./keyboard.js";
import { askForToken, loadSession, may, useTokenOfAddress } from "./session.js";
import { startState } from "./state.js";
import { startTheme } from "./theme.js";
import { isForReader, startToasts, toast } from "./toasts.js";

async function signIn() {
  try {
    await useTokenOfAddress();
    await loadSession();
  } catch (error) {
    if (error.status !== 401) throw error;
    await askForToken(document.body);
  }
}

async function start() {
  startTheme();
  await signIn();
  startState();
  const frame = new Frame();
  document.body.replaceChildren(...frame.elements);
  startToasts();
  startKeyboard(frame);
  addEventListener("beforeunload", (event) => frame.detail?.hasUnsaved && event.preventDefault());
  document.addEventListener("signed-out", () => location.reload(), { once: true });
  await frame.start();
  if (may("watch") && status === "off") startChanges();
}

addEventListener("unhandledrejection", (event) => {
  if (isForReader(event.reason)) toast(event.reason?.message ?? "Something failed.", { kind: "error" });
});

await start();
