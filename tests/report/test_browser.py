"""A report in a real browser: every page draws, search and sort find, keys are enough, and nothing is asked for."""

import itertools

import numpy as np
import pytest

from report.browser import Page
from report.conftest import Opener
from report.reports import text_report

pytestmark = pytest.mark.browser

ADDRESSES = ("#/", "#/sites", "#/components", "#/component/{}/0", "#/component/{}/1", "#/nowhere")
# Between an event and the rows that it leads to, the best of a few: the machine may do other things too.
SOON_MS, TRIES = 250.0, 3


def names(page: Page) -> list[str]:
    """The components in the rows that exist, from the top."""
    return page.run(
        "return [...document.querySelectorAll('.rows .row .name a')].map(a => a.textContent)"
    )


def search(page: Page, words: str) -> float:
    """Types into the search field; milliseconds until the rows are there."""
    return page.run(
        """const field = document.getElementById("search");
        field.value = arguments[0];
        const before = performance.now();
        field.dispatchEvent(new Event("input"));
        document.body.offsetHeight;  // laid out, not only made
        return performance.now() - before;""",
        words,
    )


@pytest.mark.parametrize(
    ("width", "scheme"), list(itertools.product([1280, 360], ["light", "dark"]))
)
@pytest.mark.parametrize("which", ["toy", "text"])
def test_every_page_draws_without_a_complaint_and_fits(
    which: str, width: int, scheme: str, request: pytest.FixtureRequest
) -> None:
    page: Page = request.getfixturevalue(which)
    page.look(width=width, scheme=scheme).complaints()
    site = {"toy": "linear1", "text": "layers.1.mlp_in"}[which]
    for address in ADDRESSES:
        page.go(address.format(site))
        assert page.text("main") != "", address
        assert page.run("return document.documentElement.scrollWidth") <= width, address
        assert page.complaints() == [], address
        asked = page.run("return performance.getEntriesByType('resource').map(e => e.name)")
        assert [name for name in asked if not name.startswith("data:")] == [], address


def test_a_page_that_asks_is_refused(text: Page) -> None:
    text.go().complaints()
    text.run("document.body.append(Object.assign(new Image(), {src: 'https://example.com/a.png'}))")
    text.wait(lambda: any("Content Security Policy" in line for line in text.complaints()))


def test_search_finds_names_and_labels_and_says_how_many(text: Page) -> None:
    text.look().go("#/components")
    search(text, "mlp_in:11")
    assert sorted(names(text)) == ["layers.0.mlp_in:11", "layers.1.mlp_in:11"]
    assert "2 of 24" in text.text(".counted")
    search(text, "CLOSING")
    assert names(text) == ["layers.1.mlp_in:11"]
    assert text.text(".rows .gist") == "closing tags </script>"  # text, and no tag
    search(text, "no such thing")
    assert names(text) == []
    text.find(".nothing button").click()
    assert "24 components" in text.text(".counted")


def test_filters_narrow_to_a_site_and_to_what_is_alive(text: Page) -> None:
    text.look().go("#/components")
    text.run(
        "const s = document.getElementById('only-site'); s.value = '0'; s.dispatchEvent(new Event('change'))"
    )
    assert {name.partition(":")[0] for name in names(text)} == {"layers.0.mlp_in"}
    text.find("#only-alive").click()
    assert "layers.0.mlp_in:0" not in names(text)
    assert "11 of 24" in text.text(".counted")


def test_a_column_sorts_both_ways_and_says_so(text: Page) -> None:
    text.look(height=1400).go("#/components")
    order = np.argsort(-text_report().density, kind="stable")
    expected = [f"layers.{place // 12}.mlp_in:{place % 12}" for place in order]
    header = "[role=columnheader].density"
    assert names(text) == expected
    assert text.find(header).get_attribute("aria-sort") == "descending"
    text.find(f"{header} button").click()
    assert names(text) == expected[::-1]
    assert text.find(header).get_attribute("aria-sort") == "ascending"


def test_a_row_opens_its_component_with_its_text_and_neighbours(text: Page) -> None:
    text.look().go("#/components")
    search(text, "layers.1.mlp_in:11")
    text.find(".rows .row").click()
    text.wait(lambda: text.text("h1") == "layers.1.mlp_in:11")
    assert "closing tags </script>" in text.text(".label")
    assert len(text.all(".windows li")) == 3
    assert len(text.all(".token.peak")) == 3
    assert text.all("main b") == []
    linked = text.run(
        "return [...document.querySelectorAll('main table a')].map(a => a.textContent)"
    )
    assert "layers.0.mlp_in:0" in linked  # the next one, around the end
    text.driver.back()
    text.wait(lambda: text.all("#search"))
    assert names(text) == ["layers.1.mlp_in:11"]  # the search is still there


def test_what_was_never_active_says_so(text: Page) -> None:
    assert "Never seen active" in text.go("#/component/layers.0.mlp_in/0").text("main")


def test_a_toy_shows_its_geometry_and_where_more_comes_from(toy: Page) -> None:
    toy.look().go("#/component/linear1/2")
    assert "feature 2" in toy.text("main")
    assert len(toy.all("svg.plane")) == 2
    assert "pd-eqx harvest" in toy.text("main")
    toy.go("#/site/linear1")
    drawn = toy.run(
        """const drawn = document.querySelector('canvas.heat');
        const copy = new OffscreenCanvas(drawn.width, drawn.height).getContext('2d', {willReadFrequently: true});
        copy.drawImage(drawn, 0, 0);
        return new Set(copy.getImageData(0, 0, drawn.width, drawn.height).data).size"""
    )
    assert drawn > 3


def test_keys_alone_reach_a_component_and_walk_on(text: Page) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    def press(*keys: str) -> None:
        ActionChains(text.driver).send_keys(*keys).perform()

    text.look().go()
    press("/")
    text.wait(lambda: text.run("return document.activeElement.id") == "search")
    press("mlp_in", Keys.ARROW_DOWN)
    text.wait(lambda: text.all(".row.active"))
    press(Keys.ARROW_DOWN)
    second = names(text)[1]
    assert text.find("[role=grid]").get_attribute("aria-activedescendant") == "row-1"
    press(Keys.ENTER)
    text.wait(lambda: text.text("h1") == second)
    press("j")
    text.wait(lambda: text.text("h1") != second)
    press("k")
    text.wait(lambda: text.text("h1") == second)


@pytest.mark.parametrize("address", ADDRESSES[:4])
def test_whatever_takes_the_focus_has_a_name(text: Page, address: str) -> None:
    text.look().go(address.format("layers.1.mlp_in"))
    tree = text.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    focusable = [
        node
        for node in tree
        if any(p["name"] == "focusable" and p["value"]["value"] for p in node.get("properties", ()))
        and node["role"]["value"] not in {"RootWebArea", "main"}
    ]
    assert len(focusable) > 4
    nameless = [node["role"]["value"] for node in focusable if not node["name"].get("value")]
    assert nameless == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(text: Page, scheme: str) -> None:
    text.look(scheme=scheme).go()
    ratios = text.run(
        """const style = getComputedStyle(document.documentElement);
        const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        const rgb = (name) => {
            probe.fillStyle = style.getPropertyValue(name);
            probe.fillRect(0, 0, 1, 1);
            return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
        };
        const light = (c) => c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const ratio = (a, b) => {
            const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
            return (x + 0.05) / (y + 0.05);
        };
        const found = {};
        for (const ground of ["--ground", "--card"])
            for (const ink of ["--ink", "--soft", "--accent"]) found[ink + ground] = ratio(rgb(ink), rgb(ground));
        found.button = ratio(rgb("--on-accent"), rgb("--accent"));
        const [card, accent] = [rgb("--card"), rgb("--accent")];
        found.token = ratio(rgb("--ink"), card.map((v, i) => v + 0.42 * (accent[i] - v)));
        return found;"""
    )
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.fixture(scope="module")
def large(opener: Opener) -> Page:
    """Ten thousand components in eight sites."""
    return opener(text_report(n_sites=8, each=1250, width=64))


def test_ten_thousand_components_answer_at_once(large: Page) -> None:
    large.look().complaints()
    large.go("#/components")
    assert "10\u202f000 components" in large.text(".counted")
    assert len(large.all(".rows .row")) < 60
    took: dict[str, float] = {}
    for words in ("m", "mlp_in:12", "cat"):
        took[f"search {words}"] = min(search(large, words) for _ in range(TRIES))
    search(large, "")
    timed = "const before = performance.now(); {}; document.body.offsetHeight; return performance.now() - before"
    for column in ("name", "density", "gist"):
        click = f"document.querySelector('[role=columnheader].{column} button').click()"
        took[f"sort by {column}"] = min(large.run(timed.format(click)) for _ in range(TRIES))
    large.run("const r = document.querySelector('.rows'); r.scrollTop = r.scrollHeight")
    last = large.run("return document.querySelector('[role=grid]').getAttribute('aria-rowcount')")
    large.wait(lambda: large.all(f"#row-{int(last) - 2}"))
    assert len(large.all(".rows .row")) < 60
    opening = """const [address, done] = arguments;
        const before = performance.now();
        addEventListener("hashchange", () => requestAnimationFrame(() => done(performance.now() - before)), {once: true});
        location.hash = address;"""
    for index, name in enumerate(("first", "second")):
        took[f"open a {name} component of a site"] = min(
            large.driver.execute_async_script(opening, f"#/component/layers.{site}.mlp_in/{index}")
            for site in range(3, 3 + TRIES)
        )
    assert large.text("h1") == "layers.5.mlp_in:1"
    print("milliseconds:", {name: round(ms, 1) for name, ms in took.items()})
    assert {name: ms for name, ms in took.items() if ms > SOON_MS} == {}
    assert large.complaints() == []
