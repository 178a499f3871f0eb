// The first page: how well the run went, what masking costs, its sites and its curves.

const MASKS = {
  unmasked: "all components, without the delta",
  rounded: "importances rounded to 0 or 1",
  ci_masked: "each component times its importance",
  stochastic: "random masks above the importances",
  random: "random masks, importances ignored",
  zeroed: "every component off",
};

const at = (...path) => path.reduce((within, name) => within?.[name], head.numbers) ?? null;

const tile = (value, name, words) => h("div", { class: "tile" }, h("dt", null, name), h("dd", null, value), words && h("dd", { class: "soft" }, words));

function tiles() {
  const living = head.sites.reduce((sum, site) => sum + site.alive, 0);
  const l0 = head.sites.reduce((sum, site) => sum + (site.l0 ?? 0), 0);
  const adversary = Object.entries(head.numbers.reconstruction ?? {}).find(([name]) => name.startsWith("pgd"));
  const errors = Object.values(head.numbers.identity_ci_error ?? {}).map((of) => of["0.1"] ?? Object.values(of)[0]);
  const wrong = errors.reduce((sum, count) => sum + count, 0);
  const unexplained = Math.max(...head.sites.map((site) => site.unexplained ?? NaN));
  return h(
    "dl",
    { class: "tiles" },
    tile(figure(living), "alive components", `of ${figure(total)} in ${plural(head.sites.length, "site")}`),
    tile(figure(l0), head.reads === "features" ? "active per input" : "active per position", `importance above ${head.above}`),
    at("reconstruction", "ci_masked") !== null && tile(figure(at("reconstruction", "ci_masked")), "error with masks", head.run.distance),
    adversary && tile(figure(adversary[1]), "error under attack", `${adversary[0].split("_")[1]} steps of ascent`),
    !Number.isNaN(unexplained) && tile(figure(unexplained), "weight unexplained", "relative, of the worst site"),
    errors.length > 0 && tile(figure(wrong), "pattern errors", wrong ? "importances on the wrong side of 0.1" : "each feature has its component"),
  );
}

function ablations() {
  const found = Object.entries(head.numbers.reconstruction ?? {});
  if (!found.length) return section("What masking costs", null, empty("Not evaluated at this step", "The run writes these numbers when it evaluates: at its end, and at ", code("evaluation.every"), "."));
  const order = ["unmasked", "rounded", "stochastic", "ci_masked", "pgd", "random", "zeroed"];
  const rank = (name) => { const place = order.findIndex((known) => name.startsWith(known)); return place < 0 ? order.length : place; };
  const rows = found
    .filter(([, value]) => typeof value === "number")
    .sort(([a], [b]) => rank(a) - rank(b))
    .map(([name, value]) => [name.startsWith("pgd") ? "attacked" : name.replaceAll("_", " "), value, MASKS[name] ?? (name.startsWith("pgd") ? `masks that an adversary chose in ${name.split("_")[1]} steps` : "")]);
  return section("What masking costs", `How far the masked network's output is from the clean one: ${head.run.distance}, on a logarithmic axis. In a good decomposition all but the last two rows are small against those.`, dotPlot(rows, head.run.distance));
}

function siteTable() {
  return section(
    "Sites",
    `Alive: ${head.aliveRule}. Measured on ${head.measuredOn}.`,
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "plain-table" },
        h("thead", null, h("tr", null, ["site", "shape", "alive", "active at once", "unexplained"].map((name, i) => h("th", { scope: "col", class: i > 1 ? "number" : "" }, name)))),
        h(
          "tbody",
          null,
          head.sites.map((site, i) =>
            h(
              "tr",
              null,
              h("th", { scope: "row" }, h("a", { href: linkToSite(i) }, site.name)),
              h("td", { class: "soft shape" }, `${site.dIn} → ${site.dOut}`),
              h("td", { class: "number" }, h("i", { class: "bar", style: { "--share": site.alive / site.count } }), `${figure(site.alive)} of ${figure(site.count)}`),
              h("td", { class: "number" }, figure(site.l0)),
              h("td", { class: "number" }, figure(site.unexplained)),
            ),
          ),
        ),
      ),
    ),
  );
}

function overview() {
  const { run } = head;
  const state = run.finished && run.step === run.steps ? "finished" : run.step === run.steps ? "at its end" : `checkpoint of step ${figure(run.step)}`;
  const words = [`${state}, ${figure(run.step)} of ${figure(run.steps)} updates`, run.seconds !== null && `${duration(run.seconds)} of training`].filter(Boolean);
  return [
    h("div", { class: "title" }, h("h1", null, run.name), h("p", { class: "soft" }, words.join(" · "))),
    tiles(),
    h("div", { class: "columns" }, ablations(), siteTable()),
    section(
      "Training",
      null,
      head.panels.length ? h("div", { class: "panels" }, head.panels.map(lineChart)) : empty("No records", "metrics.jsonl holds nothing yet."),
    ),
    section(
      "The run",
      null,
      h("dl", { class: "facts" }, Object.entries({ ...run.facts, ...(head.harvest ?? {}) }).map(([name, text]) => [h("dt", null, name), h("dd", null, text)])),
      h("details", null, h("summary", null, "Configuration"), h("pre", { tabindex: 0 }, run.config)),
    ),
  ];
}
