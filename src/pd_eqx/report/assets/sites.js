// A site: how its importances look, where its components point, and what they sum to.

function siteHeat(site, heat) {
  const values = opened(heat.values);
  const [rows, width] = heat.values.shape;
  const paint = sequential();
  if (!width) return empty("No component is active here", "Every importance is below ", String(heat.faint), ".");
  const hidden = heat.hidden ? `; ${plural(heat.hidden, "more component", "more components")} never above ${figure(heat.faint, 2)}` : "";
  const side = head.reads === "features" ? "feature" : "token";
  return heatMap({
    rows,
    columns: width,
    value: (r, c) => values[r * width + c],
    paint,
    rowName: (r) => (side === "feature" ? String(r) : heat.rows[r]),
    columnName: (c) => String(heat.columns[c]),
    words: (r, c) => [`component ${heat.columns[c]}`, side === "feature" ? heat.rows[r] : `token ${r}: ${visible(heat.rows[r])}`, `importance ${figure(values[r * width + c], 2)}`],
    open: (r, c) => { location.hash = linkTo(placeOf(site, heat.columns[c])); },
    label: `Causal importance at ${head.names[site]}, ${heat.title}: ${rows} rows, ${width} components`,
    columnTitle: `components, reordered${hidden}`,
  });
}

function siteHeats(site) {
  const { heats } = head.sites[site];
  if (!heats.length) return null;
  const body = h("div", null);
  const buttons = heats.map((heat, which) => h("button", { type: "button", class: "choice", onclick: () => choose(which) }, heat.title));
  const choose = (which) => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === which)));
    body.replaceChildren(siteHeat(site, heats[which]));
  };
  choose(0);
  const note = head.reads === "features" ? "One row for each feature, fed alone; one column for each component." : "One row for each token of a sequence; one column for each component.";
  return section("Causal importance", note, heats.length > 1 && h("div", { class: "choices", role: "group", "aria-label": "Which sequence" }, buttons), body, key("0", "1", "key-one"));
}

const siteFacts = (site) =>
  h(
    "dl",
    { class: "tiles" },
    tile(figure(site.alive), "alive components", `of ${figure(site.count)}`),
    tile(figure(site.l0), "active at once", `importance above ${head.above}`),
    tile(figure(site.unexplained), "weight unexplained", "relative squared error"),
    Object.entries(site.facts).map(([name, text]) => tile(text, name)),
  );

function sitePage(index) {
  const site = head.sites[index];
  const pick = h("select", { id: "pick-site", onchange: () => { location.hash = linkToSite(Number(pick.value)); } }, head.names.map((name, i) => h("option", { value: String(i), selected: i === index }, name)));
  const strongest = Array.from({ length: site.count }, (_, c) => placeOf(index, c)).sort((a, b) => mean[b] - mean[a]).slice(0, 12).filter((place) => mean[place] > 0);
  const plane = directions(index);
  const both = matrices(index);
  const heats = siteHeats(index);
  const spread = site.histogram && section("Distribution of importance", "Share of all positions and components; logarithmic.", histogram(site.histogram, `Importances at ${site.name}`));
  const narrow = heats && spread && site.heats[0].columns.length <= 14;
  return [
    h(
      "div",
      { class: "title" },
      head.sites.length > 1 && h("div", { class: "walk" }, h("label", { for: "pick-site", class: "unseen" }, "Site"), pick),
      h("h1", null, site.name),
      h("p", { class: "soft" }, `${figure(site.dIn)} inputs → ${figure(site.dOut)} outputs, ${plural(site.count, "component")}`),
    ),
    siteFacts(site),
    narrow ? h("div", { class: "columns" }, heats, spread) : heats,
    plane && section("Directions", "The vector of each feature, in the target and in the components. Arrows of one colour and length in both are features recovered.", plane),
    h(
      "div",
      { class: "columns" },
      !narrow && spread,
      section(
        "Strongest components",
        "By mean importance.",
        strongest.length
          ? h("ol", { class: "links" }, strongest.map((place) => h("li", null, h("a", { href: linkTo(place) }, nameOf(place)), h("span", { class: "number" }, figure(mean[place])), h("span", { class: "soft gist" }, gistOf(place)?.text ?? ""))))
          : empty("None", "No component of this site is ever active."),
      ),
      narrow && both && section("Weights", null, both),
    ),
    !narrow && both && section("Weights", null, both),
  ];
}
