// Builds nodes. Every text enters the page as a text node, so nothing that is stored can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: h("button", {class: "quiet", onclick: save, disabled: true}, "Save"). */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/** Replace what an element contains. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Make an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  append(element, children);
  return element;
}

const ICONS = {
  back: "M10 3 5 8l5 5",
  chevron: "m6 4 4 4-4 4",
  close: "m4 4 8 8m0-8-8 8",
  copy: "M6 6h7v7H6zM3 10V3h7",
  download: "M8 2v8m-3-3 3 3 3-3M3 13h10",
  edit: "m3 13 1-4 7-7 3 3-7 7-4 1Z",
  file: "M4 2h5l3 3v9H4zM9 2v3h3",
  folder: "M2 4h4l2 2h6v7H2z",
  history: "M8 4v4l3 2M2.5 8a5.5 5.5 0 1 0 2-4.2M2 2v3h3",
  item: "M5 3C3 3 4 8 2 8c2 0 1 5 3 5m6-10c2 0 1 5 3 5-2 0-1 5-3 5",
  link: "M7 9a3 3 0 0 0 4 0l2-2a3 3 0 0 0-4-4L8 4m1 3a3 3 0 0 0-4 0L3 9a3 3 0 0 0 4 4l1-1",
  move: "M2 8h11m-3-3 3 3-3 3",
  pause: "M5 3v10m6-10v10",
  play: "m5 3 8 5-8 5z",
  plus: "M8 3v10M3 8h10",
  search: "m10.5 10.5 3.5 3.5M7 2a5 5 0 1 0 0 10A5 5 0 0 0 7 2",
  theme: "M8 2a6 6 0 1 0 0 12zM8 2a6 6 0 0 1 0 12",
  trash: "M3 4h10M6 4V2h4v2M4 4l1 10h6l1-10",
  upload: "M8 10V2M5 5l3-3 3 3M3 13h10",
};

/** Make an icon, which screen readers skip. */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" }, path);
}

/** Make a button with an icon; without a text, the label names it. */
export function button(label, iconName, onclick, properties = {}) {
  const { bare, ...rest } = properties;
  const named = bare ? { "aria-label": label, title: label } : {};
  return h("button", { type: "button", onclick, ...named, ...rest }, iconName && icon(iconName), !bare && label);
}

/** Make what a view shows when it has nothing: what that means, and what to do. */
export function emptyState(title, text, ...actions) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", {}, text), ...actions);
}

/** Call a function at most once in so many milliseconds, also while calls keep coming. */
export function throttle(delay, run) {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => {
      timer = 0;
      run();
    }, delay);
  };
}

/** Call a function so many milliseconds after the last call. */
export function debounce(delay, run) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(run, delay, ...given);
  };
}
