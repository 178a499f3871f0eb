// A component's page: what it answers to, what it reads and writes, and who is active with it.

function harvestHint(what) {
  return empty(`No ${what} yet`, "A harvest collects them: ", code("pd-eqx harvest RUN --batches 64"), ", and then ", code("pd-eqx report RUN"), " again.");
}

function responses(part, index) {
  if (!part.response) return null;
  const values = row(opened(part.response), index);
  return sized((width) => drawResponses(values, width));
}

function drawResponses(values, width) {
  const count = values.length;
  const height = 150;
  const [left, top, bottom] = [30, 8, 24];
  const step = (width - left) / count;
  const y = (value) => top + (1 - value) * (height - top - bottom);
  const every = Math.ceil((count * 26) / (width - left));
  const above = Array.from(values.keys()).filter((f) => values[f] > head.above);
  return s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": above.length ? `Importance is above ${head.above} for ${above.map((f) => `feature ${f}, ${figure(values[f], 2)}`).join("; ")}` : `No feature alone brings its importance above ${head.above}` },
    [0, 0.5, 1].map((tick) => [s("line", { x1: left, x2: width, y1: y(tick), y2: y(tick), class: "grid" }), s("text", { x: left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, String(tick))]),
    Array.from(values, (value, f) =>
      s("g", { onpointermove: (event) => showTip([`feature ${f}`, `importance ${figure(value, 2)}`], event.clientX, event.clientY), onpointerleave: hideTip },
        s("rect", { x: left + f * step, y: top, width: step, height: height - top - bottom, fill: "transparent" }),
        s("rect", { x: left + (f + 0.15) * step, y: y(value), width: Math.min(0.7 * step, 48), height: Math.max(height - bottom - y(value), 0), class: "bar-fill" }),
        f % every === 0 && s("text", { x: left + (f + 0.15) * step + Math.min(0.35 * step, 24), y: height - 8, "text-anchor": "middle" }, String(f)))),
  );
}

function tokenList(packed, index, name, words) {
  if (!packed) return null;
  const items = row(opened(packed.items), index);
  const scores = row(opened(packed.scores), index);
  const there = Array.from(items.keys()).filter((i) => items[i] >= 0);
  const most = Math.max(...there.map((i) => scores[i]), 1e-9);
  return h(
    "div",
    null,
    h("h3", null, name),
    h("p", { class: "note" }, words),
    there.length
      ? h("ul", { class: "scores" }, there.map((i) => h("li", null, h("span", { class: "word" }, visible(wordOf(items[i]))), h("i", { class: "bar", style: { "--share": Math.max(0, scores[i] / most) } }), h("span", { class: "number" }, figure(scores[i])))))
      : h("p", { class: "soft" }, "no token more than elsewhere"),
  );
}

function neighbourTable(places, scores, scoreName) {
  return h(
    "table",
    { class: "plain-table" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, "component"), h("th", { scope: "col", class: "number" }, scoreName), h("th", { scope: "col", class: "number" }, "active"), h("th", { scope: "col" }, "what it does"))),
    h("tbody", null, places.map((place, i) => h("tr", null, h("th", { scope: "row" }, h("a", { href: linkTo(place) }, nameOf(place))), h("td", { class: "number" }, figure(scores[i])), h("td", { class: "number" }, percent(density[place])), h("td", { class: "soft gist" }, gistOf(place)?.text ?? "")))),
  );
}

function neighbours(part, index) {
  if (!part.neighbours) return null;
  const items = row(opened(part.neighbours.items), index);
  const scores = row(opened(part.neighbours.scores), index);
  const there = Array.from(items.keys()).filter((i) => items[i] >= 0);
  if (!there.length) return empty("Alone", "No other component is active where this one is.");
  return neighbourTable(there.map((i) => items[i]), there.map((i) => scores[i]), head.scoreName);
}

/** Components of the same site whose matrix points the same way: cosines of `V ⊗ U`. */
function alike(site, index) {
  const part = partOf(site);
  const count = head.counts[site];
  if (!part.V.all || !part.U.all || count < 2) return null;
  const [V, U] = [opened(part.V.all), opened(part.U.all)];
  const dot = (array, a, b) => {
    const size = array.length / count;
    let sum = 0;
    for (let i = 0; i < size; i++) sum += array[a * size + i] * array[b * size + i];
    return sum;
  };
  const length = (c) => Math.sqrt(dot(V, c, c) * dot(U, c, c));
  const own = length(index);
  const found = [];
  for (let c = 0; c < count; c++) {
    const size = own * length(c);
    if (c !== index && size > 0) found.push([placeOf(site, c), (dot(V, index, c) * dot(U, index, c)) / size]);
  }
  found.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const few = found.slice(0, 6);
  return neighbourTable(few.map(([place]) => place), few.map(([, cosine]) => cosine), "cosine");
}

function componentPage(site, index) {
  const place = placeOf(site, index);
  const part = partOf(site);
  const gist = gistOf(place);
  const here = shown.places.indexOf(place);
  const step = (move, name, sign) => {
    const to = here < 0 ? undefined : shown.places[here + move];
    return to === undefined
      ? h("span", { class: "step off", "aria-hidden": "true" }, sign)
      : h("a", { class: "step", href: linkTo(to), "aria-label": `${name} of the table: ${nameOf(to)}`, "aria-keyshortcuts": move < 0 ? "k" : "j" }, sign);
  };
  const [v, u] = [vectorOf(part.V, index), vectorOf(part.U, index)];
  const reach = Math.max(...v.values.map(Math.abs), ...u.values.map(Math.abs));
  const windows = windowsOf(part, index);
  const together = neighbours(part, index);
  const same = alike(site, index);
  const response = responses(part, index);
  const plane = directions(site, index);
  const both = matrices(site, index);
  const ofIts = part.histogram && row(opened(part.histogram), index);
  return [
    h(
      "div",
      { class: "title" },
      h("nav", { class: "walk", "aria-label": "Walk through the table" }, step(-1, "Previous", "←"), h("span", { class: "soft number" }, here < 0 ? "" : `${figure(here + 1)} of ${figure(shown.places.length)}`), step(1, "Next", "→")),
      h("h1", null, h("a", { class: "site", href: linkToSite(site) }, head.names[site]), h("span", { class: "index" }, `:${index}`)),
      gist?.isLabel
        ? h("p", { class: "label" }, gist.text, (gist.author || gist.score !== null) && h("span", { class: "soft" }, [gist.author, gist.score !== null && `detection score ${figure(gist.score, 2)}`].filter(Boolean).join(", ")))
        : h("p", { class: "soft" }, gist ? `answers to ${gist.text}` : alive[place] ? "no label yet" : "not alive"),
    ),
    h(
      "dl",
      { class: "tiles" },
      tile(percent(density[place]), "active", `importance above ${head.above}`),
      tile(figure(mean[place]), "mean importance", "over positions"),
      tile(figure(norm[place]), "size", "length of V times length of U"),
      tile(alive[place] ? "yes" : "no", "alive", head.aliveRule.replace("importance ", "")),
    ),
    response && section("Answers to", "Its importance with one feature fed at a time.", response),
    head.reads === "tokens" || windows ? section("Where it is active", head.reads === "tokens" ? "The deeper the colour, the more the component matters at that token; the chosen token is bold." : "Inputs, and the features that are active in them.", windows ?? harvestHint("windows")) : null,
    head.reads === "tokens" && (part.responds || part.promotes)
      ? section("Tokens", null, h("div", { class: "pair" }, tokenList(part.responds, index, "responds to", "Tokens over-represented where it is active, in bits of mutual information."), tokenList(part.promotes, index, "promotes", "Tokens over-represented in what the target says there.")))
      : null,
    plane && section("Direction", "The vector that it gives its strongest feature, before the other components.", plane),
    section("Vectors", "What it reads (V) and writes (U), scaled to share its size equally.", h("div", { class: "pair" }, vectorBars(v, reach, "V", "input"), vectorBars(u, reach, "U", "output"))),
    both && section("Its part of the weight", null, both),
    h(
      "div",
      { class: "columns" },
      section("Active together", "Components of any site that are active at the same positions.", together ? h("div", { class: "scroll" }, together) : harvestHint("co-activation")),
      same && section("Alike in weights", "Components of this site whose V ⊗ U points the same way.", h("div", { class: "scroll" }, same)),
    ),
    ofIts && section("Distribution of importance", "Share of positions; logarithmic.", histogram(ofIts, `Importances of ${nameOf(place)}`)),
  ].filter(Boolean);
}
