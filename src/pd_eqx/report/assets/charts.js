// Lines over steps, bars of a histogram, and dots on a logarithmic scale; all SVG, in the colours of the style sheet.

const DASHES = ["", "5 2", "2 2", "6 2 1 2"];

function niceTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
  const ticks = [];
  for (let tick = Math.ceil(low / unit) * unit; tick <= high + unit * 1e-9; tick += unit) ticks.push(Math.abs(tick) < unit * 1e-9 ? 0 : tick);
  return ticks;
}

function logTicks(low, high) {
  if (high < 30 * low) {
    const power = 10 ** Math.floor(Math.log10(low));
    return [1, 2, 5, 10, 20, 50, 100, 200].map((unit) => unit * power).filter((tick) => tick >= low && tick <= high);
  }
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / 5));
  const ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(10 ** power);
  return ticks;
}

/** A number on an axis, as short as it can be. */
function tickLabel(value) {
  const size = Math.abs(value);
  if (size >= 1e6 && size % 1e6 === 0) return `${value / 1e6}M`;
  if (size >= 1e4 && size % 1e3 === 0) return `${value / 1e3}k`;
  if (size !== 0 && size < 1e-3) {
    const [front, power] = value.toExponential().split("e");
    const unit = Number(Number(front).toPrecision(2));
    return unit === 1 ? `10${superscript(power)}` : `${unit}×10${superscript(power)}`;
  }
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

/** A scale from values to lengths: linear, or logarithmic where the values span more than a factor of 20. */
function scaleFor(low, high, from, to) {
  const logs = low > 0 && high > 20 * low;
  if (logs) {
    const [a, b] = [Math.log10(low), Math.log10(high)];
    const at = (value) => from + ((Math.log10(value) - a) / (b - a)) * (to - from);
    return { at, ticks: logTicks(low, high), logs };
  }
  const bottom = low >= 0 ? 0 : low;
  const top = high > bottom ? high : bottom + 1;
  return { at: (value) => from + ((value - bottom) / (top - bottom)) * (to - from), ticks: niceTicks(bottom, top, 4), logs };
}

/** Curves that share an axis, with a crosshair that pointer and arrow keys move. */
function lineChart(panel) {
  const styles = seriesStyles(panel);
  const legend = h(
    "ul",
    { class: "legend" },
    panel.series.map((series, index) =>
      h(
        "li",
        null,
        s("svg", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" }, s("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: styles[index].stroke, "stroke-width": styles[index].wide ? 2.5 : 2, "stroke-dasharray": styles[index].dash })),
        series.name.replaceAll("_", " ").replaceAll("/", " · "),
      ),
    ),
    panel.leftOut ? h("li", { class: "soft" }, `${panel.leftOut} more in metrics.jsonl`) : null,
  );
  return h("figure", { class: "panel" }, h("figcaption", null, h("strong", null, panel.title), h("span", { class: "soft" }, ` ${panel.unit}`)), sized((width) => drawLines(panel, styles, width)), legend);
}

/** The first total is drawn in ink; all others have a colour and a dash of their own. */
function seriesStyles(panel) {
  const whole = panel.series.findIndex((series) => series.name.split("/").includes("total"));
  return panel.series.map((series, i) => {
    if (i === whole) return { stroke: "var(--ink)", dash: "", wide: true };
    const index = i - (whole >= 0 && i > whole ? 1 : 0);
    return { stroke: `var(--series-${index % 8})`, dash: DASHES[index % DASHES.length], wide: false };
  });
}

function drawLines(panel, styles, width) {
  const height = 190;
  const [left, right, top, bottom] = [52, 8, 8, 24];
  const values = panel.series.flatMap((series) => series.values).filter((value) => value !== null);
  const last = Math.max(...panel.series.map((series) => series.steps.at(-1)));
  const x = scaleForSteps(last, left, width - right);
  const y = scaleFor(Math.min(...values), Math.max(...values), height - bottom, top);
  const lines = panel.series.map((series, index) => {
    const points = series.steps.map((step, i) => [x.at(step), series.values[i]]).filter(([, value]) => value !== null && (!y.logs || value > 0));
    const style = { stroke: styles[index].stroke, "stroke-width": styles[index].wide ? 2 : 1.5, "stroke-dasharray": styles[index].dash };
    if (points.length < 2) return points.map(([px, value]) => s("circle", { cx: px, cy: y.at(value), r: 2.5, fill: styles[index].stroke }));
    return s("polyline", { points: points.map(([px, value]) => `${px.toFixed(1)},${y.at(value).toFixed(1)}`).join(" "), fill: "none", "stroke-linejoin": "round", ...style });
  });
  const cross = s("line", { y1: top, y2: height - bottom, class: "cross", visibility: "hidden" });
  const steps = [...new Set(panel.series.flatMap((series) => series.steps))].sort((a, b) => a - b);
  const ends = panel.series.map((series) => `${series.name} ${figure(series.values.at(-1))}`).join(", ");
  let chosen = steps.length - 1;

  const read = (index, clientX, clientY) => {
    chosen = index;
    const step = steps[index];
    cross.setAttribute("x1", x.at(step));
    cross.setAttribute("x2", x.at(step));
    cross.setAttribute("visibility", "visible");
    const lines = panel.series.flatMap((series) => {
      const i = series.steps.indexOf(step);
      return i < 0 ? [] : [`${series.name}  ${figure(series.values[i])}`];
    });
    showTip([`step ${figure(step)}`, ...lines], clientX, clientY);
    return [`step ${step}`, ...lines].join(", ");
  };
  const nearest = (px) => {
    let best = 0;
    for (const [i, step] of steps.entries()) if (Math.abs(x.at(step) - px) < Math.abs(x.at(steps[best]) - px)) best = i;
    return best;
  };
  const leave = () => {
    cross.setAttribute("visibility", "hidden");
    hideTip();
  };
  const picture = s(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      class: "chart",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "line chart",
      "aria-label": `${panel.title} over ${figure(last)} steps; at the end ${ends}. Arrow keys read values.`,
      onpointermove: (event) => {
        const box = picture.getBoundingClientRect();
        read(nearest(((event.clientX - box.left) / box.width) * width), event.clientX, event.clientY);
      },
      onpointerleave: leave,
      onblur: leave,
      onkeydown: (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!move) return;
        event.preventDefault();
        const index = Math.min(Math.max(0, chosen + move), steps.length - 1);
        const box = picture.getBoundingClientRect();
        say(read(index, box.left + (x.at(steps[index]) / width) * box.width, box.top + 20));
      },
    },
    y.ticks.map((tick) => [
      s("line", { x1: left, x2: width - right, y1: y.at(tick), y2: y.at(tick), class: "grid" }),
      s("text", { x: left - 6, y: y.at(tick) + 3.5, "text-anchor": "end" }, tickLabel(tick)),
    ]),
    x.ticks.map((tick) => s("text", { x: x.at(tick), y: height - 8, "text-anchor": tick === 0 ? "start" : x.at(tick) > width - right - 16 ? "end" : "middle" }, tickLabel(tick))),
    lines,
    cross,
  );
  return picture;
}

function scaleForSteps(last, from, to) {
  const ticks = niceTicks(0, last || 1, 4);
  return { at: (step) => from + (step / (last || 1)) * (to - from), ticks };
}

/** Shares in equal parts of [0, 1], on a logarithmic scale: most importances are 0 or 1, and the rest is what matters. */
function histogram(shares, label) {
  const positive = [...shares].filter((share) => share > 0);
  if (!positive.length) return empty("Nothing to draw", "No importance was seen.");
  return sized((width) => drawHistogram([...shares], positive, label, width));
}

function drawHistogram(shares, positive, label, width) {
  const height = 150;
  const [left, right, top, bottom] = [52, 8, 8, 24];
  const low = Math.min(...positive, 0.1) / 3;
  const y = (share) => height - bottom - (Math.log(share / low) / Math.log(1 / low)) * (height - bottom - top);
  const x = (value) => left + value * (width - left - right);
  const n = shares.length;
  const bars = shares.map((share, i) => {
    const words = [`importance ${figure(i / n, 2)} to ${figure((i + 1) / n, 2)}`, `${percent(share)} of positions`];
    return s("g", { onpointermove: (event) => showTip(words, event.clientX, event.clientY), onpointerleave: hideTip },
      s("rect", { x: x(i / n), y: top, width: (width - left - right) / n, height: height - bottom - top, fill: "transparent" }),
      share > 0 && s("rect", { x: x(i / n) + 0.75, y: y(share), width: (width - left - right) / n - 1.5, height: height - bottom - y(share), class: "bar-fill" }));
  });
  const middle = shares.slice(1, -1).reduce((sum, share) => sum + share, 0);
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `${label}: ${percent(shares[0])} near 0, ${percent(middle)} between, ${percent(shares[n - 1])} near 1` },
    logTicks(low, 1).map((tick) => [s("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick), class: "grid" }), s("text", { x: left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, tickLabel(tick))]),
    bars,
    [0, 0.5, 1].map((value) => s("text", { x: x(value), y: height - 8, "text-anchor": value === 0 ? "start" : value === 1 ? "end" : "middle" }, String(value))),
  );
}

/** Named numbers as dots on one logarithmic axis. `rows`: `[name, value, what it is]`. */
function dotPlot(rows, unit) {
  const shown = rows.filter(([, value]) => value > 0);
  if (!shown.length) return empty("Nothing to draw", "No reconstruction error was recorded.");
  const low = 10 ** Math.floor(Math.log10(Math.min(...shown.map(([, value]) => value))));
  const high = 10 ** Math.ceil(Math.log10(Math.max(...shown.map(([, value]) => value))) + 1e-9);
  const span = Math.log10(high / low) || 1;
  const at = (value) => `${(100 * Math.log10(value / low)) / span}%`;
  return h(
    "div",
    { class: "dots" },
    h("table", null,
      h("caption", { class: "unseen" }, `Reconstruction errors, ${unit}`),
      h("thead", { class: "unseen" }, h("tr", null, h("th", { scope: "col" }, "masks"), h("th", { scope: "col" }, "place on the axis"), h("th", { scope: "col" }, unit))),
      h("tbody", null, rows.map(([name, value, words]) =>
        h("tr", null,
          h("th", { scope: "row" }, name, h("span", { class: "soft" }, words)),
          h("td", { class: "track", "aria-hidden": "true" }, value > 0 && h("div", { class: "rail" }, h("i", { style: { left: at(value) } }))),
          h("td", { class: "number" }, figure(value))))),
      h("tfoot", { "aria-hidden": "true" }, h("tr", null, h("td", null), h("td", { class: "axis" }, h("div", null, h("span", null, tickLabel(low)), h("span", null, tickLabel(high)))), h("td", null))),
    ),
  );
}
