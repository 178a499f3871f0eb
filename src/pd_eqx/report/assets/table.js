// The table of all components: only the rows in sight exist, and order and filter are arrays of places.

const ROW = 36;

const columns = [
  { key: "name", title: "component", first: 1, value: (place) => place },
  { key: "density", title: "active", first: -1, value: (place) => density[place], words: `share of positions with an importance above ${head.above}` },
  { key: "mean", title: "mean importance", first: -1, value: (place) => mean[place], words: "mean causal importance over positions" },
  { key: "norm", title: "size", first: -1, value: (place) => norm[place], words: "length of V times length of U" },
  { key: "gist", title: "what it does", first: 1, value: (place) => gistOf(place)?.text.toLowerCase() ?? "\uffff", words: "a label, or what it answers to" },
];

// What the table shows, kept while other pages are open: the pages of components walk through it too.
const shown = { query: "", site: -1, aliveOnly: false, sort: "density", direction: -1, places: [] };

const haystack = Array.from({ length: total }, (_, place) => `${nameOf(place)} ${gistOf(place)?.text ?? ""}`.toLowerCase());

/** Filters and sorts; equal components keep their order. */
function arrange() {
  const words = shown.query.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = [];
  for (let place = 0; place < total; place++) {
    if (shown.site >= 0 && siteOf[place] !== shown.site) continue;
    if (shown.aliveOnly && !alive[place]) continue;
    if (words.every((word) => haystack[place].includes(word))) kept.push(place);
  }
  const { value } = columns.find((column) => column.key === shown.sort);
  const keys = new Map(kept.map((place) => [place, value(place)]));
  const sign = shown.direction;
  kept.sort((a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    return x < y ? -sign : x > y ? sign : a - b;
  });
  shown.places = kept;
}

arrange();

function componentTable() {
  const most = density.reduce((a, b) => Math.max(a, b), 0) || 1;
  const spacer = h("div", { class: "spacer", role: "presentation" });
  const rows = h("div", { class: "rows", role: "rowgroup" }, spacer);
  const counted = h("p", { class: "counted", "aria-live": "polite" });
  let active = -1;

  const cell = (name, ...children) => h("div", { role: "gridcell", class: `cell ${name}` }, ...children);
  const rowFor = (i) => {
    const place = shown.places[i];
    const gist = gistOf(place);
    return h(
      "div",
      {
        role: "row",
        id: `row-${i}`,
        "aria-rowindex": i + 2,
        "aria-selected": i === active ? "true" : "false",
        class: `row${alive[place] ? "" : " dead"}${i === active ? " active" : ""}`,
        style: { top: `${i * ROW}px` },
        onclick: (event) => {
          if (!event.target.closest("a")) location.hash = linkTo(place);
        },
      },
      cell("name", h("a", { href: linkTo(place), tabindex: -1 }, h("span", { class: "site" }, head.names[siteOf[place]]), h("span", { class: "index" }, `:${place - starts[siteOf[place]]}`)), !alive[place] && h("span", { class: "badge" }, "not alive")),
      cell("density number", h("i", { class: "bar", style: { "--share": Math.sqrt(density[place] / most) } }), h("span", null, percent(density[place]))),
      cell("mean number", figure(mean[place])),
      cell("norm number", figure(norm[place])),
      cell(`gist${gist?.isLabel ? "" : " soft"}`, gist?.text ?? ""),
    );
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(rows.scrollTop / ROW) - 6);
    const last = Math.min(shown.places.length, Math.ceil((rows.scrollTop + rows.clientHeight) / ROW) + 6);
    const made = [];
    for (let i = first; i < last; i++) made.push(rowFor(i));
    rows.replaceChildren(spacer, ...made);
    if (!shown.places.length) rows.append(h("div", { class: "nothing" }, empty("No component matches", "Fewer words, or another site, may find more. ", h("button", { type: "button", class: "plain", onclick: clear }, "Clear the filters"))));
    if (active >= 0) grid.setAttribute("aria-activedescendant", `row-${active}`);
    else grid.removeAttribute("aria-activedescendant");
  };
  const update = () => {
    arrange();
    active = -1;
    rows.scrollTop = 0;
    spacer.style.height = `${shown.places.length * ROW}px`;
    grid.setAttribute("aria-rowcount", shown.places.length + 1);
    counted.textContent = shown.places.length === total ? `${plural(total, "component")}` : `${figure(shown.places.length)} of ${plural(total, "component")}`;
    for (const header of headers) header.mark();
    draw();
  };
  const clear = () => {
    Object.assign(shown, { query: "", site: -1, aliveOnly: false });
    search.value = "";
    sites.value = "-1";
    lives.checked = false;
    update();
    search.focus();
  };
  const headers = columns.map((column) => {
    const button = h("button", { type: "button", title: column.words, onclick: () => sortBy(column) }, column.title, h("span", { class: "direction", "aria-hidden": "true" }));
    const element = h("div", { role: "columnheader", class: `cell ${column.key}` }, button);
    const mark = () => {
      const here = shown.sort === column.key;
      element.setAttribute("aria-sort", here ? (shown.direction > 0 ? "ascending" : "descending") : "none");
      button.lastChild.textContent = here ? (shown.direction > 0 ? "↑" : "↓") : "";
    };
    return { element, mark };
  });
  const sortBy = (column) => {
    shown.direction = shown.sort === column.key ? -shown.direction : column.first;
    shown.sort = column.key;
    update();
    say(`sorted by ${column.title}, ${shown.direction > 0 ? "ascending" : "descending"}`);
  };
  const grid = h(
    "div",
    { role: "grid", class: "grid-table", tabindex: 0, "aria-label": "Components", "aria-colcount": columns.length },
    h("div", { role: "rowgroup" }, h("div", { role: "row", class: "row heads", "aria-rowindex": 1 }, headers.map((header) => header.element))),
    rows,
  );
  grid.addEventListener("keydown", (event) => {
    if (event.target !== grid) return;
    const page = Math.max(1, Math.floor(rows.clientHeight / ROW) - 1);
    const end = shown.places.length - 1;
    const to = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: end }[event.key];
    if (event.key === "Enter" && active >= 0) location.hash = linkTo(shown.places[active]);
    if (to === undefined || end < 0) return;
    event.preventDefault();
    active = Math.min(Math.max(0, to), end);
    const [top, bottom] = [active * ROW, (active + 1) * ROW];
    if (top < rows.scrollTop) rows.scrollTop = top;
    if (bottom > rows.scrollTop + rows.clientHeight) rows.scrollTop = bottom - rows.clientHeight;
    draw();
  });
  rows.addEventListener("scroll", draw, { passive: true });
  const search = h("input", { type: "search", id: "search", placeholder: "name, site or label", value: shown.query, autocomplete: "off", spellcheck: "false", oninput: () => { shown.query = search.value; update(); } });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown") return;
    event.preventDefault();
    grid.focus();
    grid.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown" }));
  });
  const sites = h("select", { id: "only-site", onchange: () => { shown.site = Number(sites.value); update(); } }, h("option", { value: "-1" }, "all sites"), head.names.map((name, i) => h("option", { value: String(i), selected: i === shown.site }, name)));
  const lives = h("input", { type: "checkbox", id: "only-alive", checked: shown.aliveOnly, onchange: () => { shown.aliveOnly = lives.checked; update(); } });
  new ResizeObserver(draw).observe(rows);
  queueMicrotask(update);
  return h(
    "div",
    { class: "table-page" },
    h(
      "div",
      { class: "filters" },
      h("div", { class: "field grow" }, h("label", { for: "search" }, "Search"), search),
      h("div", { class: "field" }, h("label", { for: "only-site" }, "Site"), sites),
      h("div", { class: "field check" }, lives, h("label", { for: "only-alive" }, "alive only")),
      counted,
    ),
    grid,
  );
}
