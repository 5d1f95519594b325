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

/** A namespace for people: "users / ada". */
export function showNamespace(labels) {
  return labels.length ? labels.join(" / ") : "All entries";
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

export function fileName(path) {
  return path.replace(/\/$/, "").split("/").at(-1);
}
