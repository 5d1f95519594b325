// Small charts: a line for each series over the last minutes.

import { h, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 84;

/** A chart with a title and the newest values. `series` is a list of [name, values, text of the newest value]. */
export function lineChart(title, series, note) {
  const most = Math.max(1e-9, ...series.flatMap(([, values]) => values.filter(Number.isFinite)));
  const longest = Math.max(2, ...series.map(([, values]) => values.length));
  const summary = series.map(([name, , newest]) => `${name}: ${newest}`).join(", ");
  const lines = series.map(([, values], index) => {
    const points = values.map((value, at) => `${((at + longest - values.length) / (longest - 1)) * WIDTH},${HEIGHT - 4 - ((value || 0) / most) * (HEIGHT - 12)}`);
    return [
      index === 0 && values.length > 1 && svg("polygon", { class: "area", points: `${points.join(" ")} ${WIDTH},${HEIGHT} ${points[0].split(",")[0]},${HEIGHT}` }),
      svg("polyline", { class: `series series-${index}`, points: points.join(" ") }),
    ];
  });
  return h(
    "figure",
    { class: "chart" },
    h("figcaption", {}, h("h3", {}, title), h("span", { class: "legend" }, series.map(([name, , newest], index) => h("span", {}, h("span", { class: `swatch series-${index}` }), `${name} `, h("strong", {}, newest))))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}. ${summary}` }, svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), lines),
    note && h("p", { class: "hint" }, note),
  );
}

/** Horizontal bars: a list of [name, value, text]. */
export function barChart(title, rows) {
  const most = Math.max(1, ...rows.map(([, value]) => value));
  const bars = rows.map(([name, value, text]) => {
    const bar = h("span", { class: "bar" });
    bar.style.width = `${Math.max(0.5, (value / most) * 100)}%`;
    return h("div", { class: "bar-row" }, h("dt", {}, name), h("dd", {}, h("span", { class: "bar-track" }, bar), h("span", { class: "bar-text" }, text)));
  });
  return h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, title)), h("dl", { class: "bars" }, bars));
}
