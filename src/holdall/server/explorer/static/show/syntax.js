// Colours for source text: comments, strings, numbers and keywords, by the ending of the file's name.

import { h } from "./dom.js";

const WORDS = {
  python: "and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match None nonlocal not or pass raise return True False try while with yield",
  script: "async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield",
  sql: "all and as asc between by case create delete desc distinct drop else end exists false from group having in index inner insert into is join left like limit not null on or order outer primary key select set table then true union unique update values view when where with",
  shell: "case do done elif else esac exit export fi for function if in local return set then while",
  compiled: "break case class const continue default do else enum extern false fn for func go if impl import int interface let long match mod mut namespace new nil null package pub public private return self static string struct switch this true type use var void while",
  data: "true false null yes no",
};
const STRINGS = String.raw`"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
const NUMBERS = String.raw`\b\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?\b`;

const language = (words, comment, strings = STRINGS, flags = "g") => ({
  words: new Set(WORDS[words].split(" ")),
  ignoresCase: flags.includes("i"),
  pattern: new RegExp(`(?<comment>${comment})|(?<string>${strings})|(?<number>${NUMBERS})|(?<word>[A-Za-z_]\\w*)`, flags),
});

const HASH = "#[^\\n]*";
const SLASHES = String.raw`//[^\n]*|/\*[\s\S]*?(?:\*/|$)`;
const python = language("python", HASH, String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|${STRINGS}`);
const script = language("script", SLASHES, String.raw`\`(?:\\.|[^\`\\])*\`?|${STRINGS}`);
const compiled = language("compiled", SLASHES);
const data = language("data", HASH);
const LANGUAGES = {
  py: python, pyi: python,
  js: script, mjs: script, cjs: script, ts: script, tsx: script, jsx: script, css: script,
  sql: language("sql", "--[^\\n]*", STRINGS, "gi"),
  sh: language("shell", HASH), bash: language("shell", HASH),
  c: compiled, h: compiled, cpp: compiled, java: compiled, go: compiled, rs: compiled, cs: compiled,
  json: language("data", "(?!)"), yaml: data, yml: data, toml: data, ini: data, conf: data, env: data,
  html: language("data", "<!--[\\s\\S]*?(?:-->|$)"), xml: language("data", "<!--[\\s\\S]*?(?:-->|$)"), svg: language("data", "<!--[\\s\\S]*?(?:-->|$)"),
};
const LARGEST = 400_000; // characters: longer texts are shown without colours

/** The lines of a text, each as a list of nodes and texts. */
export function colour(text, path) {
  const found = LANGUAGES[path.split(".").at(-1).toLowerCase()];
  if (!found || text.length > LARGEST) return text.split("\n").map((line) => [line]);
  const lines = [[]];
  const add = (part, kind) => {
    part.split("\n").forEach((piece, index) => {
      if (index) lines.push([]);
      if (piece) lines.at(-1).push(kind ? h("span", { class: `syntax-${kind}` }, piece) : piece);
    });
  };
  let end = 0;
  for (const match of text.matchAll(found.pattern)) {
    const kind = kindOf(match, found);
    if (!kind) continue;
    add(text.slice(end, match.index), null);
    add(match[0], kind);
    end = match.index + match[0].length;
  }
  add(text.slice(end), null);
  return lines;
}

function kindOf({ groups }, { words, ignoresCase }) {
  if (groups.comment !== undefined) return "comment";
  if (groups.string !== undefined) return "string";
  if (groups.number !== undefined) return "number";
  return words.has(ignoresCase ? groups.word.toLowerCase() : groups.word) ? "keyword" : null;
}
