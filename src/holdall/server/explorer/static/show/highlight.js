// Marks the words of a query in a text.

import { h } from "./dom.js";

/** The text as nodes, with the words of the query marked, also as beginnings of longer words. */
export function highlight(text, query) {
  const words = (query.match(/[\p{L}\p{N}_]+/gu) ?? []).map(stem).filter((word) => word.length > 1);
  if (!words.length) return [text];
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(?:${words.join("|")})[\\p{L}\\p{N}]*`, "giu");
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(pattern)) {
    nodes.push(text.slice(end, match.index), h("mark", {}, match[0]));
    end = match.index + match[0].length;
  }
  nodes.push(text.slice(end));
  return nodes;
}

/** Cut common endings: the index finds "allergies" for "allergy". */
function stem(word) {
  return word.length > 4 ? word.replace(/(ies|ing|ed|es|s|y)$/i, "") : word;
}
