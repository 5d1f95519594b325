// The changes of the store as they come. The stream continues from its cursor: after a lost connection, after the
// server was stopped, and after the tab was hidden (a browser opens few connections, so hidden tabs hold none).

import { address, cursor, isExpired, Problem } from "./api.js";

const KINDS = ["put", "delete", "expire"];
const FIRST_DELAY = 500; // milliseconds
const LONGEST_DELAY = 10_000;
const REFUSED = [401, 403]; // other errors pass: the server restarts, or the token has sent too many requests

const listeners = new Set();
const statusListeners = new Set();
let source = null;
let last = null;
let delay = FIRST_DELAY;
let timer = 0;
let isOpening = false;
let wasRefused = false; // perhaps because the feed no longer has the cursor
export let status = "off"; // "off", "connecting", "live" or "lost"

export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function onStatus(listener) {
  statusListeners.add(listener);
  listener(status);
}

function setStatus(now) {
  if (now === status) return;
  status = now;
  for (const listener of statusListeners) listener(now);
}

/** Begin to listen. The token must allow it. */
export function startChanges() {
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : open()));
  open();
}

function stop() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

async function open() {
  if (source || isOpening || document.hidden) return;
  if (status === "off") setStatus("connecting");
  isOpening = true;
  let isGone = false;
  try {
    const now = await cursor(); // asked each time: a stream does not say that the token was revoked
    isGone = wasRefused && (await isExpired(last));
    wasRefused = false;
    if (isGone || last === null) last = now;
  } catch (error) {
    if (error instanceof Problem && REFUSED.includes(error.status)) setStatus("off");
    else retry();
    return;
  } finally {
    isOpening = false;
  }
  if (isGone) tell(null); // everything is read again, from the present on
  if (document.hidden) return;
  const stream = new EventSource(address("changes", { since: last }));
  source = stream;
  stream.onopen = () => {
    delay = FIRST_DELAY;
    setStatus("live");
  };
  for (const kind of KINDS) stream.addEventListener(kind, receive);
  stream.addEventListener("expired", () => (wasRefused = true));
  stream.onerror = () => {
    if (source !== stream) return;
    wasRefused ||= stream.readyState === EventSource.CLOSED;
    stop();
    retry();
  };
}

function retry() {
  setStatus("lost");
  clearTimeout(timer);
  timer = setTimeout(open, delay);
  delay = Math.min(delay * 2, LONGEST_DELAY);
}

function receive(event) {
  const change = JSON.parse(event.data);
  last = change.cursor;
  change.time = Date.now();
  tell(change);
}

function tell(change) {
  for (const listener of listeners) listener(change);
}
