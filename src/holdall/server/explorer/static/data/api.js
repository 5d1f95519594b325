// The REST API. Every request of the page goes through here.

import { state } from "../shell/state.js";
import { encodeAddress, encodeNamespace, fitsInPath, showName } from "./names.js";

const BASE = new URL("v1/", document.baseURI);

/** An answer of the server that is an error: its status, its title (such as "Conflict") and its detail. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail ?? document.title ?? `the server answered ${status}`);
    this.status = status;
    this.title = document.title ?? "";
    this.document = document;
  }
}

/** The server cannot be reached. */
class Offline extends Error {
  constructor() {
    super("The server cannot be reached. The page tries again by itself.");
  }
}

export function address(path, query = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

/** Send a request; the answer if it succeeded, else a Problem is thrown. */
async function send(method, path, { query, body, headers = {}, signal, raw } = {}) {
  const options = { method, headers: { ...headers }, signal, credentials: "same-origin" };
  if (body !== undefined) {
    options.body = raw ? body : JSON.stringify(body);
    if (!raw) options.headers["Content-Type"] = "application/json";
  }
  if (method !== "GET" && method !== "HEAD") options.headers["Holdall-Author"] ??= "explorer";
  let response;
  try {
    response = await fetch(address(path, query), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Offline();
  }
  if (response.ok) return response;
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    // the answer of a proxy, for example, is not JSON
  }
  if (response.status === 401) document.dispatchEvent(new CustomEvent("signed-out"));
  throw new Problem(response.status, problem);
}

async function json(method, path, options) {
  return (await send(method, path, options)).json();
}

/** Reads see the store as it was at the moment that the page shows. */
const past = () => (state.at ? { at: state.at } : {});

export const me = () => json("GET", "me");
export const stats = () => json("GET", "stats");
export const metrics = () => json("GET", "metrics");
export const cursor = async () => (await json("GET", "cursor")).cursor;

/** Whether the feed no longer has a cursor. An event source does not tell why it was refused. */
export async function isExpired(since) {
  const abort = new AbortController();
  try {
    await send("GET", "changes", { query: { since }, signal: abort.signal });
    return false;
  } catch (error) {
    if (error.status !== 410) throw error;
    return true;
  } finally {
    abort.abort();
  }
}

export async function signIn(token) {
  await send("POST", "session", { headers: { Authorization: `Bearer ${token}` } });
}

export async function signOut() {
  await send("DELETE", "session");
}

// Lists ---------------------------------------------------------------------------------------------------------------

export async function namespaces(prefix, { counts = false, offset = 0, limit = 200 } = {}) {
  const query = {
    prefix: encodeNamespace(prefix),
    max_depth: prefix.length + 1,
    limit,
    offset,
    counts: counts ? "true" : null,
    ...past(),
  };
  return (await json("GET", "namespaces", { query })).namespaces;
}

export async function countEntries(namespace, filter) {
  return (await json("POST", "count", { query: past(), body: { namespace, ...(filter && { filter }) } })).count;
}

export function scan(namespace, { after, limit, preview, signal }) {
  const query = { namespace: encodeNamespace(namespace), after, limit, preview, ...past() };
  return json("GET", "scan", { query, signal });
}

export function search(body, signal) {
  return json("POST", "search", { query: past(), body, signal });
}

// Entries -------------------------------------------------------------------------------------------------------------

/** Parse JSON so that a number such as 1.0 or 12345678901234567890 is written again as it was. */
export function parseExactly(text) {
  if (!JSON.rawJSON) return JSON.parse(text);
  return JSON.parse(text, (_name, value, context) =>
    typeof value === "number" && context?.source !== undefined && String(value) !== context.source
      ? JSON.rawJSON(context.source)
      : value,
  );
}

export async function getEntry(namespace, key) {
  if (!fitsInPath([...namespace, key])) {
    const body = { ops: [{ op: "get", namespace, key }] };
    const response = await send("POST", "batch", { query: past(), body });
    const [entry] = parseExactly(await response.text()).results;
    if (entry === null) throw new Problem(404, { title: "NotFound", detail: `there is no ${key}` });
    return entry;
  }
  const response = await send("GET", `items/${encodeAddress(namespace, key)}`, { query: past() });
  return parseExactly(await response.text());
}

/** How many vectors an entry has; undefined if that cannot be asked. */
export async function countVectors(namespace, key) {
  if (state.at || !fitsInPath([...namespace, key])) return undefined;
  return (await json("GET", `vectors/${encodeAddress(namespace, key)}`)).vectors;
}

/** Write an entry if it still has a version (null: if there is none). `text` is the JSON of its value. */
export async function putEntry(namespace, key, text, version) {
  if (!fitsInPath([...namespace, key])) {
    const expect = version ?? "absent";
    const parts = JSON.stringify({ op: "put", namespace, key, expect, ttl: "keep" }).slice(0, -1);
    const options = { body: `{"ops":[${parts},"value":${text}}]}`, raw: true };
    return (await json("POST", "batch", options)).results[0];
  }
  const headers = { ...expecting(version), "Content-Type": "application/json" };
  const options = { query: { ttl: "keep" }, body: text, raw: true, headers };
  return json("PUT", `items/${encodeAddress(namespace, key)}`, options);
}

export async function deleteEntry(namespace, key, version) {
  if (!fitsInPath([...namespace, key])) {
    return json("POST", "batch", { body: { ops: [{ op: "delete", namespace, key, expect: version }] } });
  }
  return send("DELETE", `items/${encodeAddress(namespace, key)}`, { headers: expecting(version) });
}

const expecting = (version) =>
  version === null || version === undefined ? { "If-None-Match": "*" } : { "If-Match": `"${version}"` };

// Files ---------------------------------------------------------------------------------------------------------------

function pathOf(path) {
  const names = path.split("/");
  if (names[0] !== "" || !fitsInPath(names)) throw new Error(`This is not the path of a file: ${showName(path)}`);
  return `files${names.map(encodeURIComponent).join("/")}`;
}
const volume = (namespace) => ({ namespace: encodeNamespace(namespace) });

export function listFolder(namespace, folder, after) {
  return json("GET", pathOf(folder), { query: { ...volume(namespace), after, ...past() } });
}

export function statFile(namespace, path) {
  return json("GET", "stat", { query: { ...volume(namespace), path, ...past() } });
}

/** Read the bytes of a file: at most `most` of them, from `start`. */
export async function readFile(namespace, path, { start = 0, most, size, version } = {}) {
  if (size === 0) return new Uint8Array();
  const headers = most && (start || most < size) ? { Range: `bytes=${start}-${start + most - 1}` } : {};
  const query = { ...volume(namespace), version, ...(version ? {} : past()) };
  const response = await send("GET", pathOf(path), { query, headers });
  return new Uint8Array(await response.arrayBuffer());
}

export function fileAddress(namespace, path) {
  return address(pathOf(path), { ...volume(namespace), ...past() });
}

export function writeFile(namespace, path, body, version) {
  return json("PUT", pathOf(path), { query: volume(namespace), body, raw: true, headers: expecting(version) });
}

export function deleteFile(namespace, path, version) {
  return send("DELETE", pathOf(path), { query: volume(namespace), headers: expecting(version) });
}

/** Delete a folder with everything in it. */
export function deleteFolder(namespace, path) {
  return send("DELETE", pathOf(path), { query: { ...volume(namespace), recursive: "true" } });
}

export function moveFile(namespace, src, dst, version) {
  return json("POST", "move", { query: volume(namespace), body: { src, dst }, headers: expecting(version) });
}

export function grep(namespace, { pattern, path, glob, regex, ignoreCase, signal }) {
  const flags = { regex: regex ? "true" : null, ignore_case: ignoreCase ? "true" : null };
  return json("GET", "grep", { query: { ...volume(namespace), pattern, path, glob, ...flags, ...past() }, signal });
}

export async function readLines(namespace, path, offset, limit) {
  return (await json("GET", "lines", { query: { ...volume(namespace), path, offset, limit, ...past() } })).lines;
}

// History -------------------------------------------------------------------------------------------------------------

/** The versions of an entry, newest first. */
export async function versions(namespace, key, limit) {
  if (key.startsWith("/")) {
    try {
      const query = { ...volume(namespace), path: key, limit };
      return (await json("GET", "file-history", { query })).versions;
    } catch (error) {
      if (error.status !== 404) throw error;
    }
  }
  if (!fitsInPath([...namespace, key])) throw new Error(`A browser cannot ask for the history of an entry in "." or "..", or named so: use the command line.`);
  const response = await send("GET", `history/${encodeAddress(namespace, key)}`, { query: { limit } });
  return parseExactly(await response.text()).versions;
}

/** The versions of all files below a folder, newest first. */
export async function folderVersions(namespace, folder, limit) {
  return (await json("GET", "file-history", { query: { ...volume(namespace), path: folder, limit } })).versions;
}

/** Write an old version again, if the entry still has a version (null: if there is none). */
export function restore({ namespace, key, isFile }, version, current) {
  return json("POST", "restore", { body: { namespace, version, ...(isFile ? { path: key } : { key }) }, headers: expecting(current) });
}

export function differences(namespace, since, limit = 200) {
  const query = { namespace: encodeNamespace(namespace), since, until: state.at, limit };
  return json("GET", "diff", { query });
}

export function rewind(namespace, when, dryRun) {
  return json("POST", "rewind", { body: { namespace, when, dry_run: dryRun } });
}

// Threads and tokens --------------------------------------------------------------------------------------------------

export const threads = (query, cursor) => json("GET", "threads", { query: { query, cursor, limit: 50, ...past() } });

/** The checkpoints of a thread, newest first. */
export function checkpoints(thread, before) {
  if (!fitsInPath([thread])) throw new Error(`A browser cannot ask for the thread "${thread}".`);
  return json("GET", `checkpoints/${encodeURIComponent(thread)}`, { query: { before, limit: 50, ...past() } });
}

export const tokens = async () => (await json("GET", "tokens")).tokens;
