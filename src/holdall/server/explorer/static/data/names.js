// Namespaces and addresses as texts: each label is percent-encoded on its own, and they are joined by "/".

export function encodeNamespace(labels) {
  return labels.map(encodeURIComponent).join("/");
}

export function decodeNamespace(text) {
  return text ? text.split("/").map(decodeURIComponent) : [];
}

/** The address of an entry: its namespace and its key. */
export function encodeAddress(namespace, key) {
  return encodeNamespace([...namespace, key]);
}

export function decodeAddress(text) {
  const labels = decodeNamespace(text);
  return { namespace: labels.slice(0, -1), key: labels.at(-1) };
}

/** A label or key for people: what cannot be seen, or would turn the text around, is shown as its code. */
export function showName(text) {
  if (PLAIN.test(text)) return text; // nearly all are, and a table shows many
  const shown = text.replace(UNSEEN, toCode).replace(/^\s+|\s+$/g, (blanks) => "␣".repeat(blanks.length));
  return /[\p{L}\p{N}\p{P}\p{S}]/u.test(shown) ? shown : [...shown].map(toCode).join("");
}

/** A text for people: as `showName`, but its lines and blanks stay. */
export function showText(text) {
  return PLAIN.test(text) ? text : text.replace(UNSEEN, (character) => (/[\t\r\n]/.test(character) ? character : toCode(character)));
}

/** A value as JSON for people. What cannot be seen, or would turn the text around, is escaped. */
export function showJson(value, indent) {
  const escape = (character) => (character === "\n" ? character : `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return JSON.stringify(value, null, indent).replace(UNSEEN, escape);
}

const PLAIN = /^[!-~]([ -~]*[!-~])?$/;
const UNSEEN = /[\p{Cc}\u00ad\u061c\u115f\u1160\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufeff\uffa0]/gu;
const toCode = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;

/** A namespace for people: "users / ada". */
export function showNamespace(labels) {
  return labels.length ? labels.map(showName).join(" / ") : "All entries";
}

export function isBelow(namespace, parent) {
  return namespace.length >= parent.length && parent.every((label, index) => namespace[index] === label);
}

export function isSame(one, other) {
  return one.length === other.length && isBelow(one, other);
}

/** Browsers remove "." and ".." from paths, so such names cannot be in one. */
export function fitsInPath(labels) {
  return labels.every((label) => label !== "." && label !== "..");
}

/** The last name of a path, for people. */
export function showFileName(path) {
  return showName(fileName(path));
}

export function fileName(path) {
  return path.replace(/\/$/, "").split("/").at(-1);
}
