// Inputs on which a component is active: text with each token's importance behind it, or the values of features.

/** A token's text with what cannot be seen made visible. */
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length));

const isNumbers = !Object.keys(head.vocabulary).length;

function textWindow(tokens, importances, peak) {
  const spans = [];
  for (let i = 0; i < tokens.length; i++) {
    if (tokens[i] < 0) continue;
    const text = wordOf(tokens[i]);
    const strength = importances[i];
    const words = [`${visible(text)}`, `importance ${strength.toFixed(2)}`, ...(isNumbers ? [] : [`token ${tokens[i]}`])];
    const span = h(
      i === peak ? "strong" : "span",
      {
        class: i === peak ? "token peak" : "token",
        style: { "--ci": strength.toFixed(3) },
        onpointermove: (event) => showTip(words, event.clientX, event.clientY),
        onpointerleave: hideTip,
      },
      isNumbers ? text : text.replaceAll("\n", "⏎\n"),
    );
    spans.push(span);
    if (isNumbers) spans.push(" ");
  }
  return h("p", { class: isNumbers ? "window numbers" : "window" }, spans);
}

function featureWindow(values, importance) {
  const most = Math.max(...values.map(Math.abs), 1e-9);
  const active = Array.from(values.keys()).filter((f) => Math.abs(values[f]) > 1e-6).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  return h(
    "div",
    { class: "features" },
    active.slice(0, 8).map((f) => h("span", { class: "feature" }, h("span", { class: "soft" }, `feature ${f}`), h("i", { style: { "--share": Math.abs(values[f]) / most } }), figure(values[f], 2))),
    active.length > 8 && h("span", { class: "soft" }, `and ${active.length - 8} more`),
    !active.length && h("span", { class: "soft" }, "no feature is active"),
  );
}

/** The windows of one component as a list, the strongest first. */
function windowList(packed, index) {
  if (!packed) return null;
  const count = opened(packed.count)[index];
  if (!count) return empty("Never seen active", "No window of the harvest activates this component.");
  const [tokens, importance] = [opened(packed.tokens), opened(packed.importance)];
  const peaks = opened(packed.peak);
  const [, most, length] = tokens.shape;
  const ofTokens = importance.shape.length === 3;
  return h(
    "ol",
    { class: "windows" },
    Array.from({ length: count }, (_, k) => {
      const at = index * most + k;
      const inputs = tokens.subarray(at * length, (at + 1) * length);
      if (!ofTokens) return h("li", null, h("span", { class: "strength" }, importance[at].toFixed(2)), featureWindow(inputs, importance[at]));
      const strengths = importance.subarray(at * length, (at + 1) * length);
      const peak = peaks ? peaks[at] : -1;
      return h("li", null, h("span", { class: "strength" }, (peak >= 0 ? strengths[peak] : Math.max(...strengths)).toFixed(2)), textWindow(inputs, strengths, peak));
    }),
  );
}

/** Two lists behind two buttons: the strongest windows, and an even sample. */
function windowsOf(part, index) {
  const kinds = [
    ["strongest", part.top],
    ["even sample", part.uniform],
  ].filter(([, packed]) => packed);
  if (!kinds.length) return null;
  const body = h("div", { id: "windows" });
  const buttons = kinds.map(([name], which) =>
    h("button", { type: "button", class: "choice", "aria-pressed": "false", "aria-controls": "windows", onclick: () => choose(which) }, name),
  );
  const choose = (which) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === which)));
    body.replaceChildren(windowList(kinds[which][1], index));
  };
  choose(0);
  return h("div", null, kinds.length > 1 && h("div", { class: "choices", role: "group", "aria-label": "Which windows" }, buttons), body);
}
