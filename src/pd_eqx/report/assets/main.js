// Which page the address names, and what is around every page.

const pages = [
  ["#/", "Overview"],
  ["#/sites", "Sites"],
  ["#/components", "Components"],
];

function bar(current) {
  const themes = { auto: "◐", light: "☀", dark: "☾" };
  const now = document.documentElement.dataset.theme ?? "auto";
  const next = { auto: "light", light: "dark", dark: "auto" }[now];
  const toggle = h("button", { type: "button", class: "theme", "aria-label": `Colours: ${now}. Change to ${next}`, title: `Colours: ${now}` , onclick: () => {
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    show(true);
    document.querySelector(".theme").focus();
  } }, themes[now]);
  return [
    h("a", { class: "brand", href: "#/" }, head.run.name),
    h("nav", { "aria-label": "Pages" }, pages.map(([href, name]) => h("a", { href, "aria-current": current === name ? "page" : null }, name))),
    toggle,
  ];
}

/** The page that the address names: its kind, its title, and what makes it. */
function route() {
  const [kind, name, index] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const site = name === undefined ? 0 : head.names.indexOf(name);
  if (kind === "") return ["Overview", head.run.name, overview];
  if (kind === "components") return ["Components", "Components", () => [h("h1", { class: "unseen" }, "Components"), componentTable()]];
  if ((kind === "sites" || kind === "site") && site >= 0) return ["Sites", head.names[site], () => sitePage(site)];
  if (kind === "component" && site >= 0 && /^\d+$/.test(index ?? "") && Number(index) < head.counts[site])
    return ["Components", `${name}:${index}`, () => componentPage(site, Number(index))];
  return ["", "Not in this report", () => [h("h1", null, "Not in this report"), empty("Nothing has this address", "The run may have other sites or fewer components. ", h("a", { href: "#/" }, "To the overview"))]];
}

const content = document.getElementById("content");

function show(stay) {
  hideTip();
  const [kind, title, make] = route();
  document.title = title === head.run.name ? `${title} · pd_eqx` : `${title} · ${head.run.name}`;
  document.body.dataset.page = kind.toLowerCase();
  document.getElementById("bar").replaceChildren(...bar(kind));
  content.replaceChildren(...make().filter(Boolean));
  if (stay !== true) {
    window.scrollTo(0, 0);
    say(title);
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = { j: '.step[aria-keyshortcuts="j"]', k: '.step[aria-keyshortcuts="k"]' };
  if (keys[event.key]) document.querySelector(keys[event.key])?.click();
  if (event.key === "/") {
    event.preventDefault();
    if (document.body.dataset.page !== "components" || !document.getElementById("search")) location.hash = "#/components";
    setTimeout(() => document.getElementById("search")?.focus(), 60);
  }
  if (event.key === "Escape") hideTip();
});
window.addEventListener("hashchange", show);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(true));
show(true);
