// Times, ages, sizes and numbers as people read them.

const UNITS = [["y", 31_536_000], ["mo", 2_592_000], ["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const numbers = new Intl.NumberFormat("en");

/** A duration in seconds as one short unit: "3 h". */
function duration(seconds) {
  for (const [name, size] of UNITS) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${name}`;
  }
  return "0 s";
}

/** How long ago a time was: "3 h ago". */
export function age(time) {
  const seconds = (Date.now() - Date.parse(time)) / 1000;
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

/** How long it is until a time: "in 3 h". */
export function until(time) {
  const seconds = (Date.parse(time) - Date.now()) / 1000;
  return seconds <= 0 ? "expired" : `in ${duration(seconds)}`;
}

/** A time in full, in the reader's zone. */
export function moment(time) {
  return exact.format(new Date(time));
}

export function count(number) {
  return numbers.format(number);
}

/** "1 entry", "2 entries". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** A number of bytes: "1.2 MB". */
export function bytes(size) {
  if (size < 1000) return plural(size, "byte");
  const power = Math.min(4, Math.floor(Math.log10(size) / 3));
  return `${(size / 1000 ** power).toPrecision(3)} ${["", "kB", "MB", "GB", "TB"][power]}`;
}

/** A time in seconds: "3.1 ms". */
export function took(seconds) {
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}
