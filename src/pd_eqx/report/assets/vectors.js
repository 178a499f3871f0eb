// A component's two vectors, and its rank-one matrix beside the weight that it is a part of.

/** Vector `index` of a packed set: all its entries, or the largest few with their places. */
function vectorOf(packed, index) {
  if (packed.all) {
    const values = row(opened(packed.all), index);
    return { size: packed.size, places: null, values, share: 1 };
  }
  return { size: packed.size, places: row(opened(packed.where), index), values: row(opened(packed.largest), index), share: opened(packed.share)[index] };
}

/** Bars up and down from a middle line; the longest bar of both vectors fills half the height. */
function vectorBars(vector, reach, name, entry) {
  const count = vector.values.length;
  const [width, height] = [Math.max(count, 24), 72];
  const step = width / count;
  const thin = step > 0.6 ? 0.16 : 0;
  const bars = Array.from(vector.values, (value, i) => {
    const length = (Math.abs(value) / (reach || 1)) * (height / 2 - 2);
    return s("rect", { x: i * step + (step * thin) / 2, y: value > 0 ? height / 2 - length : height / 2, width: step * (1 - thin), height: Math.max(length, 0.2), class: value < 0 ? "minus" : "plus" });
  });
  const at = (event) => {
    const box = picture.getBoundingClientRect();
    const i = Math.min(count - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * count)));
    const place = vector.places ? vector.places[i] : i;
    showTip([`${entry} ${place}`, figure(vector.values[i])], event.clientX, event.clientY);
  };
  const order = Array.from(vector.values.keys()).sort((a, b) => Math.abs(vector.values[b]) - Math.abs(vector.values[a])).slice(0, 3);
  const largest = order.map((i) => `${entry} ${vector.places ? vector.places[i] : i} ${figure(vector.values[i])}`).join(", ");
  const picture = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "vector", role: "img", "aria-label": `${name}: largest entries ${largest}`, onpointermove: at, onpointerleave: hideTip },
    s("line", { x1: 0, x2: width, y1: height / 2, y2: height / 2, class: "grid", "vector-effect": "non-scaling-stroke" }),
    bars,
  );
  const note = vector.places
    ? `the ${count} largest of ${figure(vector.size)} entries, by size; they hold ${percent(vector.share)} of its square`
    : `${figure(vector.size)} entries`;
  return h("figure", { class: "panel" }, h("figcaption", null, h("strong", null, name), h("span", { class: "soft" }, ` ${note}`)), picture, h("p", { class: "note" }, "largest: ", largest));
}

/** A matrix in two hues around zero. */
function matrixMap(rows, columns, value, reach, title) {
  const paint = diverging();
  return h(
    "figure",
    { class: "panel" },
    h("figcaption", null, h("strong", null, title)),
    heatMap({
      rows,
      columns,
      value,
      paint: (number) => paint(number / (reach || 1)),
      words: (r, c) => [`input ${r} → output ${c}`, figure(value(r, c))],
      label: `${title}, ${rows} inputs by ${columns} outputs`,
      tallest: 240,
    }),
  );
}

/** A site's weight and its components' sum; or, with `index`, the weight and that component alone. */
function matrices(site, index) {
  const part = partOf(site);
  const weight = opened(part.weight);
  if (!weight || !part.V.all || !part.U.all) return null;
  const { dIn, dOut, count } = head.sites[site];
  const [V, U] = [opened(part.V.all), opened(part.U.all)];
  const sum = new Float32Array(dIn * dOut);
  const which = index === undefined ? Array.from({ length: count }, (_, c) => c) : [index];
  for (const c of which)
    for (let i = 0; i < dIn; i++) {
      const share = V[c * dIn + i];
      if (share) for (let j = 0; j < dOut; j++) sum[i * dOut + j] += share * U[c * dOut + j];
    }
  const reach = Math.max(...weight.map(Math.abs), ...sum.map(Math.abs));
  const title = index === undefined ? "sum of components, V U" : "this component, V ⊗ U";
  // Wide matrices lie on their side, so that both fit beside one another.
  return h(
    "div",
    null,
    h("div", { class: "pair" }, matrixMap(dIn, dOut, (r, c) => weight[r * dOut + c], reach, "target W"), matrixMap(dIn, dOut, (r, c) => sum[r * dOut + c], reach, title)),
    key(`−${figure(reach, 2)}`, figure(reach, 2), "key-two"),
  );
}
