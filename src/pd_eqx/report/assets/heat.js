// Heat maps on a canvas: a cell under the pointer says what it is, arrow keys walk from cell to cell, Enter opens it.

const parse = (() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  return (text) => {
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    return probe.getImageData(0, 0, 1, 1).data;
  };
})();

const mix = (a, b, t) => `rgb(${[0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * t)).join(",")})`;

/** From the page's ground to the accent: numbers in [0, 1]. */
function sequential() {
  const [from, to] = [parse(colour("--heat-0")), parse(colour("--heat-1"))];
  return (value) => mix(from, to, Math.min(1, Math.max(0, value)));
}

/** From one hue over the ground to another: numbers in [-1, 1]. */
function diverging() {
  const [minus, none, plus] = [parse(colour("--minus")), parse(colour("--heat-0")), parse(colour("--plus"))];
  return (value) => mix(none, value < 0 ? minus : plus, Math.min(1, Math.abs(value)));
}

/**
 * A heat map.
 *
 * `rows`, `columns`: how many; `value(r, c)`; `paint(value)`: a colour.
 * `rowName(r)`, `columnName(c)`: short words, drawn where there is room; `words(r, c)`: lines for the tip.
 * `open(r, c)`: what a click does, or nothing. `label`: what the map is, for who does not see it.
 */
function heatMap({ rows, columns, value, paint, rowName, columnName, words, open, label, tallest = 420, columnTitle = "" }) {
  const canvas = h("canvas", {
    class: "heat",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "heat map",
    "aria-label": `${label}. Arrow keys walk over the cells${open ? ", Enter opens the component" : ""}.`,
  });
  const frame = h("div", { class: "heat-frame" }, canvas);
  let place = null;
  let layout = null;

  const draw = () => {
    const width = frame.clientWidth;
    if (!width) return;
    const context = canvas.getContext("2d");
    const font = getComputedStyle(document.body).fontFamily;
    context.font = `11px ${font}`;
    const labelled = rowName && tallest / rows >= 11;
    const names = labelled ? Array.from({ length: rows }, (_, r) => shorten(rowName(r))) : [];
    const left = labelled ? Math.ceil(Math.max(...names.map((name) => context.measureText(name).width))) + 8 : 0;
    const across = Math.min((width - left) / columns, 46);
    const down = Math.min(Math.max(tallest / rows, 1), Math.max(across * 0.7, 14), 32);
    const titled = columnName && across >= 17;
    const bottom = titled ? 16 : 0;
    layout = { left, across, down };
    const [w, height] = [left + across * columns, down * rows + bottom];
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(w * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${w}px`;
    canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    context.font = `11px ${font}`;
    context.textBaseline = "middle";
    const gap = Math.min(across, down) >= 8 ? 1 : 0;
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        context.fillStyle = paint(value(r, c));
        const x = left + c * across;
        const y = r * down;
        if (gap) context.fillRect(x, y, across - gap, down - gap);
        else context.fillRect(Math.floor(x), Math.floor(y), Math.ceil(x + across) - Math.floor(x), Math.ceil(y + down) - Math.floor(y));
      }
    }
    context.fillStyle = colour("--soft");
    context.textAlign = "right";
    names.forEach((name, r) => context.fillText(name, left - 6, (r + 0.5) * down));
    context.textAlign = "center";
    if (titled) for (let c = 0; c < columns; c++) context.fillText(columnName(c), left + (c + 0.5) * across, height - 7);
    if (place && document.activeElement === canvas) {
      context.strokeStyle = colour("--ink");
      context.lineWidth = 2;
      context.strokeRect(left + place[1] * across, place[0] * down, across - gap, down - gap);
    }
  };
  const cellAt = (event) => {
    if (!layout) return null;
    const box = canvas.getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left - layout.left) / layout.across);
    const r = Math.floor((event.clientY - box.top) / layout.down);
    return c >= 0 && c < columns && r >= 0 && r < rows ? [r, c] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    canvas.style.cursor = cell && open ? "pointer" : "default";
    if (cell) showTip(words(...cell), event.clientX, event.clientY);
    else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell && open) open(...cell);
  });
  canvas.addEventListener("focus", () => {
    place ??= [0, 0];
    draw();
  });
  canvas.addEventListener("blur", () => {
    hideTip();
    draw();
  });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" && open && place) return open(...place);
    if (!move) return;
    event.preventDefault();
    place = [Math.min(Math.max(0, place[0] + move[0]), rows - 1), Math.min(Math.max(0, place[1] + move[1]), columns - 1)];
    draw();
    const box = canvas.getBoundingClientRect();
    const lines = words(...place);
    showTip(lines, box.left + layout.left + (place[1] + 0.5) * layout.across, box.top + (place[0] + 0.5) * layout.down);
    say(lines.join(", "));
  });
  new ResizeObserver(draw).observe(frame);
  return h("div", null, frame, columnTitle && h("p", { class: "axis-title" }, columnTitle));
}

const shorten = (text, most = 14) => {
  const shown = visible(text);
  return shown.length > most ? `${shown.slice(0, most - 1)}…` : shown;
};

/** The bar that says which colour is which number. */
const key = (low, high, kind) =>
  h("div", { class: "key", "aria-hidden": "true" }, h("span", null, low), h("i", { class: kind }), h("span", null, high));
