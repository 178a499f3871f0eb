// Elements, numbers as people read them, and the two ways in which the page speaks: a tip, and a live region.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, style] of Object.entries(value)) element.style.setProperty(key, style);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element; text in children is text, never markup. */
const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

const superscript = (text) => text.replace(/[-0-9]/g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign]));

/** Three digits that mean something: `0.0123`, `1.23×10⁻⁵`, `12 300`. */
function figure(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) {
    const [front, exponent] = value.toExponential(digits - 1).split("e");
    return `${front.replace("-", "−")}×10${superscript(String(Number(exponent)))}`;
  }
  if (Number.isInteger(value)) return value.toLocaleString("en-US").replaceAll(",", "\u202f").replace("-", "−");
  return value.toPrecision(digits).replace("-", "−");
}

function percent(share) {
  if (share === 0) return "0 %";
  if (share < 1e-4) return "< 0.01 %";
  return `${(100 * share).toPrecision(3)} %`;
}

function duration(seconds) {
  if (seconds === null) return null;
  if (seconds < 90) return `${Number(seconds.toPrecision(2))} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const plural = (count, one, many = `${one}s`) => `${figure(count)} ${count === 1 ? one : many}`;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const tip = document.getElementById("tip");

/** Shows words beside the pointer, or beside a point of an element. */
function showTip(lines, x, y) {
  tip.replaceChildren(...lines.map((line) => h("div", null, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + 14), window.innerWidth - width - 8);
  const below = y + 18 + height < window.innerHeight;
  tip.style.transform = `translate(${left}px, ${below ? y + 18 : y - height - 12}px)`;
}

const hideTip = () => {
  tip.hidden = true;
};

/** Tells those who do not see the page what has changed. */
const say = (text) => {
  document.getElementById("said").textContent = text;
};

const section = (title, note, ...children) =>
  h("section", { class: "card" }, h("h2", null, title), note && h("p", { class: "note" }, note), children);

const empty = (title, ...words) =>
  h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), h("p", null, ...words));

/** What `draw(width)` makes, made again for every width that it is given: one unit of it is always one pixel. */
function sized(draw) {
  const frame = h("div", { class: "sized" });
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(frame.clientWidth);
    if (!width || width === last) return;
    last = width;
    const held = frame.contains(document.activeElement);
    frame.replaceChildren(draw(width));
    if (held) frame.firstChild.focus();
  }).observe(frame);
  return frame;
}

const code = (text) => h("code", null, text);
