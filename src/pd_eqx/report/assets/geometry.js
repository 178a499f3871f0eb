// Sites with a side of two dimensions: where the target's features point, and where the components do.

const featureHue = (feature) => `var(--series-${feature % 8})`;

function arrow(x, y, stroke, name, scale, strong) {
  const [px, py] = [x * scale, -y * scale];
  const length = Math.hypot(px, py);
  if (length < 1.5) return s("circle", { cx: px, cy: py, r: 1.6, fill: stroke });
  const [ux, uy] = [px / length, py / length];
  const tipSize = 7;
  const wing = (side) => `${px - ux * tipSize - uy * side * 3.6},${py - uy * tipSize + ux * side * 3.6}`;
  return s(
    "g",
    null,
    s("line", { x1: 0, y1: 0, x2: px - ux * 4, y2: py - uy * 4, stroke, "stroke-width": strong ? 2.6 : 1.6 }),
    s("polygon", { points: `${px},${py} ${wing(1)} ${wing(-1)}`, fill: stroke }),
    name && s("text", { x: px + ux * 9, y: py + uy * 9 + 4, "text-anchor": ux > 0.4 ? "start" : ux < -0.4 ? "end" : "middle", fill: stroke, class: "arrow-name" }, name),
  );
}

/** Arrows of features in the target and in the components beside it; with `only`, that component before the others. */
function directions(site, only) {
  const { dIn, dOut, count } = head.sites[site];
  const part = partOf(site);
  const weight = opened(part.weight);
  if (Math.min(dIn, dOut) !== 2 || !weight || !part.V.all) return null;
  const [V, U] = [opened(part.V.all), opened(part.U.all)];
  const featuresIn = dOut === 2;
  const features = featuresIn ? dIn : dOut;
  const target = Array.from({ length: features }, (_, f) => (featuresIn ? [weight[f * 2], weight[f * 2 + 1]] : [weight[f], weight[dOut + f]]));
  const found = Array.from({ length: count }, (_, c) => {
    let [best, feature] = [0, 0];
    for (let f = 0; f < features; f++) {
      const share = featuresIn ? V[c * dIn + f] : U[c * dOut + f];
      if (Math.abs(share) > Math.abs(best)) [best, feature] = [share, f];
    }
    const way = featuresIn ? [U[c * 2], U[c * 2 + 1]] : [V[c * 2], V[c * 2 + 1]];
    return { c, feature, x: best * way[0], y: best * way[1], lives: alive[placeOf(site, c)] > 0 };
  });
  const reach = Math.max(...target.map(([x, y]) => Math.hypot(x, y)), ...found.map(({ x, y }) => Math.hypot(x, y)), 1e-6);
  const half = 120;
  const scale = (half - 34) / reach;
  const frame = (title, words, arrows) =>
    h(
      "figure",
      { class: "panel" },
      h("figcaption", null, h("strong", null, title), h("span", { class: "soft" }, ` ${words}`)),
      s(
        "svg",
        { viewBox: `${-half} ${-half} ${2 * half} ${2 * half}`, class: "plane", role: "img", "aria-label": `${title}: ${words}` },
        s("circle", { r: reach * scale, class: "ring" }),
        s("line", { x1: -half, x2: half, y1: 0, y2: 0, class: "grid" }),
        s("line", { y1: -half, y2: half, x1: 0, x2: 0, class: "grid" }),
        arrows,
      ),
    );
  const drawn = [...found].sort((a, b) => a.lives - b.lives || (a.c === only) - (b.c === only));
  const living = found.filter(({ lives }) => lives).length;
  return h(
    "div",
    { class: "pair" },
    frame("target", plural(features, "feature"), target.map(([x, y], f) => arrow(x, y, featureHue(f), String(f), scale, false))),
    frame(
      only === undefined ? "components" : `component ${only}`,
      only === undefined ? `${living} of ${count} alive; the others grey` : "before the others, grey",
      drawn.map(({ c, feature, x, y, lives }) => {
        const strong = only === undefined ? lives : c === only;
        const legible = strong && Math.hypot(x, y) > 0.2 * reach;
        const mark = arrow(x, y, strong ? featureHue(feature) : "var(--grey)", legible ? (only === undefined ? `c${c}` : `feature ${feature}`) : "", scale, c === only);
        if (c === only) return mark;
        return s("a", { href: linkTo(placeOf(site, c)), "aria-label": `component ${c}, nearest feature ${feature}`, tabindex: lives ? 0 : -1 }, mark);
      }),
    ),
  );
}
