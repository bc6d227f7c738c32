"""The panel of one parameter, layer or module in a real Chromium: its histograms, and how one gets there."""

from __future__ import annotations

import math
import re
import time
from collections import Counter

import pytest
from page_fixtures import Served, never_late, page_runs, until
from page_visits import OnePage, visit
from playwright.sync_api import Page, expect

from probe.wire.columns import unpack_column

pytestmark = pytest.mark.browser

LAYOUT = page_runs.layout()
PARAMETERS = [parameter.name for parameter in LAYOUT.parameters]
MODULES = [module.name for module in LAYOUT.modules]


def open_page(page: Page, run: str, query: str = "") -> None:
    visit(page, f"run={run}{query}")
    until(page, "document.querySelectorAll('#heatmap-labels button').length > 0")


def counted(name: str, step: int, rows: list[int]) -> dict[object, int]:
    """Exponent of two, or what is special, -> elements. All lie where a bin is one power of two."""
    of = MODULES if name == "activation" else PARAMETERS
    values = page_runs.magnitudes(name, step, len(of))[rows].ravel().tolist()
    assert all(2.0**-25 <= abs(value) < 2.0**8 for value in values if value == value and value)
    return Counter(
        "NaN" if value != value else "exactly 0" if value == 0 else math.frexp(abs(value))[1] - 1
        for value in values
    )


DIGITS = str.maketrans("\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079", "-0123456789")
COUNTS = """([name, step]) => {
    const kind = nanscope.shownHistograms().find(each => each.name === name);
    const counts = kind.counts[kind.steps.indexOf(step)], { bins } = nanscope.templates.magnitudes;
    return counts.map((count, bin) => [bins[bin], count]).filter(([, count]) => count > 0);
}"""


def drawn(page: Page, name: str, step: int = 40) -> dict[object, int]:
    """The same from a column on screen, whose bins' lower edges are written as powers of two."""
    return {
        text if text in ("exactly 0", "NaN") else int(text.split(" to ")[0][1:].translate(DIGITS)): count
        for text, count in page.evaluate(COUNTS, [name, step])
    }


def wait_shown(page: Page, *, step: int, name: str = "gradient") -> None:
    expect(page.locator("#row-tables")).to_contain_text(f"step {step}")
    until(
        page,
        "([name, step]) => nanscope.shownHistograms().some(k => k.name === name && k.steps.at(-1) === step)",
        arg=[name, step],
    )


INK = """selector => {
    const canvas = document.querySelector(selector);
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    return new Set(new Uint32Array(data.buffer)).size;
}"""


def wait_painted(page: Page, selector: str, colours: int = 8) -> None:
    """Wait until a canvas has so many colours."""
    until(page, f"selector => ({INK})(selector) >= {colours}", arg=selector)


class TestRows(OnePage):
    """A run that measures all, and for tests that need something else one of their own."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        served.fill(steps=range(50), is_full=True)
        shared_page.goto(served.server.address + "&run=demo-run")
        until(shared_page, "document.querySelectorAll('#heatmap-labels button').length > 0")
        return shared_page

    def test_rows_click_on_the_heatmap_opens_the_layers_histograms(self, page: Page) -> None:
        open_page(page, "demo-run")
        expect(page.locator("#row-open")).to_be_visible()
        box = page.locator("#heatmap-canvas").bounding_box()
        layers = [layer.name for layer in LAYOUT.layers]
        row = layers.index("blocks.1.mlp.0")
        page.mouse.click(box["x"] + 40, box["y"] + box["height"] * (row + 0.5) / len(layers))
        expect(page.locator("#row-head h2")).to_have_text("blocks.1.mlp.0")
        wait_shown(page, step=40)
        own = [index for index, name in enumerate(PARAMETERS) if name.startswith("blocks.1.mlp.0.")]
        assert drawn(page, "gradient") == counted("gradient", 40, own)
        assert drawn(page, "parameter") == counted("parameter", 40, own)
        assert drawn(page, "activation") == counted("activation", 40, [MODULES.index("blocks.1.mlp.0")])
        wait_painted(page, "#row-canvases canvas")
        plot, aside = page.locator("#plot-loss").bounding_box(), page.locator("#row-aside").bounding_box()
        until(page, "nanscope.painted('loss').box.w <= 1440 * 0.68")
        assert plot["x"] < aside["x"]
        assert page.evaluate("document.documentElement.scrollWidth") == 1440

    def test_rows_drag_zooms_and_double_click_resets_without_opening(self, page: Page) -> None:
        open_page(page, "demo-run")
        expect(page.locator("#row-open")).to_be_visible()
        box = page.locator("#heatmap-canvas").bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 50, steps=5)
        page.mouse.up()
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "false")
        page.mouse.dblclick(box["x"] + 300, box["y"] + 50)
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "true")
        page.wait_for_timeout(500)
        expect(page.locator("#row-aside")).to_be_hidden()

    def test_rows_unfolded_parameter_opens_by_keyboard_and_escape_closes(self, page: Page) -> None:
        open_page(page, "demo-run")
        page.locator("#heatmap-labels button", has_text="embed").click()
        label = page.locator("#heatmap-labels button", has_text="bias").first
        expect(label).to_be_enabled()
        label.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#row-head")).to_contain_text("float32")
        wait_shown(page, step=40)
        assert drawn(page, "gradient") == counted("gradient", 40, [PARAMETERS.index("embed.bias")])
        assert "row=embed.bias" in page.url
        page.keyboard.press("Escape")
        expect(page.locator("#row-aside")).to_be_hidden()
        assert "row=" not in page.url

    def test_rows_panel_that_is_opened_again_has_its_pictures_again(self, page: Page) -> None:
        open_page(page, "demo-run")
        for _ in range(2):
            page.evaluate("nanscope.openRow('head.bias')")
            wait_shown(page, step=40)
            wait_painted(page, "#row-canvases canvas")
            expect(page.locator("#row-newest-rows tr").first).to_contain_text("49")
            page.keyboard.press("Escape")
            expect(page.locator("#row-aside")).to_be_hidden()

    def test_rows_selector_lists_names_and_switches(self, page: Page) -> None:
        open_page(page, "demo-run", "&row=")
        expect(page.locator("#row-head h2")).to_have_text("(root)")
        wait_shown(page, step=40, name="activation")
        page.locator("#row-select").click()
        page.keyboard.type("head.b")
        page.get_by_role("option", name="head.bias").click()
        expect(page.locator("#row-head h2")).to_have_text("head.bias")
        wait_shown(page, step=40)
        assert drawn(page, "gradient") == counted("gradient", 40, [PARAMETERS.index("head.bias")])
        assert "row=head.bias" in page.url

    def test_rows_panel_follows_new_steps_zoom_and_theme(self, page: Page, served: Served) -> None:
        served.fill(run="followed", steps=range(50), is_full=True)
        open_page(page, "followed", "&row=head.weight")
        wait_shown(page, step=40)
        served.fill(run="followed", steps=range(50, 65), is_full=True)
        wait_shown(page, step=60)
        assert drawn(page, "gradient", 60) == counted("gradient", 60, [PARAMETERS.index("head.weight")])
        page.evaluate("nanscope.zoom(10, 30)")
        wait_shown(page, step=20)
        page.evaluate("nanscope.zoom(22, 30)")
        expect(page.locator("#row-head")).to_contain_text("No histogram of it was recorded")
        expect(page.locator("#row-over-time")).to_be_hidden()
        page.keyboard.press("0")
        wait_shown(page, step=60)
        wait_painted(page, "#row-canvases canvas")
        pixel = (
            "[...document.querySelector('#row-canvases canvas').getContext('2d')"
            ".getImageData(60, 60, 1, 1).data]"
        )
        dark = page.evaluate(pixel)
        page.locator("#page-menu").click()
        page.locator("#theme-light").click()
        until(page, f"dark => String({pixel}) !== String(dark)", arg=dark)
        page.locator("#page-menu").click()
        page.locator("#theme-system").click()
        until(page, "document.documentElement.dataset.theme === 'dark'")
        page.evaluate("localStorage.clear()")

    def test_rows_event_and_row_take_turns(self, page: Page, served: Served) -> None:
        served.fill(run="turns", steps=range(50), is_full=True)
        served.add_event(page_runs.event(20, run="turns"))
        open_page(page, "turns", "&row=head.weight")
        wait_shown(page, step=40)
        page.locator("#verdict-text").click()
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
        expect(page.locator("#row-aside")).to_be_hidden()
        page.locator("#row-open").click()
        expect(page.locator("#row-aside")).to_be_visible()
        expect(page.locator("#event-aside")).to_be_hidden()
        assert "event=" not in page.url

    def test_rows_run_without_histograms_says_at_which_level_there_are_some(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="basic", steps=range(30))
        open_page(page, "basic")
        box = page.locator("#heatmap-canvas").bounding_box()
        page.mouse.click(box["x"] + 40, box["y"] + 3)
        expect(page.locator("#row-head h2")).to_have_text("embed")
        expect(page.locator("#row-absent")).to_contain_text("Histograms: none in these steps.")
        expect(page.locator("#row-over-time")).to_be_hidden()
        expect(page.locator(".tensor-track")).to_have_count(2)
        page.locator("#row-absent button").first.click()
        expect(page.locator("#tab-controls")).to_have_attribute("aria-selected", "true")
        expect(page.locator("#level-choice")).to_be_focused()

    def test_rows_tracks_and_last_values_are_those_of_the_store(self, page: Page, served: Served) -> None:
        served.fill(run="nan", steps=range(50), is_full=True, bad={49: "nan"})
        open_page(page, "nan", "&row=embed.weight")
        rows = page.locator("#row-newest-rows tr")
        expect(rows).to_have_count(20)
        assert rows.nth(0).locator("th").inner_text() == "49"
        assert rows.nth(0).locator("td").nth(0).inner_text() == "NaN"
        norm = unpack_column(page_runs.measured_frame(48, LAYOUT, time=0).columns[0])[0]
        assert float(rows.nth(1).locator("td").nth(0).inner_text()) == pytest.approx(norm, rel=6e-3)
        wait_painted(page, ".tensor-track canvas", colours=4)
        value = page.locator(".tensor-track b").first
        expect(value).to_have_text("NaN")
        page.locator("#row-tracks-canvases").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#announcer")).to_contain_text("step 48, Gradient norm 0.")
        expect(value).to_have_text(re.compile(r"^0\.\d+$"))
        page.keyboard.press("End")
        expect(page.locator("#announcer")).to_contain_text("step 49, Gradient norm NaN")

    def test_rows_histograms_are_read_by_keys_and_pointer(self, page: Page) -> None:
        open_page(page, "demo-run", "&row=embed.weight")
        wait_shown(page, step=40)
        canvas = page.locator("#row-canvases canvas").first
        until(page, "document.querySelector('#row-canvases canvas').getAttribute('aria-valuetext') !== null")
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        until(page, "document.activeElement.getAttribute('aria-valuetext').startsWith('step 20, ')")
        said = canvas.get_attribute("aria-valuetext")
        counts = counted("gradient", 20, [PARAMETERS.index("embed.weight")])
        most = max(counts.values())
        assert "most elements 2" in said and f": {100 * most / 200:.2f} %" in said
        assert "fp16 0 % outside" in said
        page.keyboard.press("Home")
        page.keyboard.press("ArrowUp")
        until(page, "document.activeElement.getAttribute('aria-valuetext').startsWith('step 0, 2')")
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 40, box["y"] + box["height"] - 3)
        expect(page.locator("#tooltip")).to_contain_text("exactly 0")
        expect(page.locator("#tooltip")).to_contain_text("1 elements, 0.50 %")

    def test_rows_panel_goes_over_the_whole_page_and_the_address_keeps_it(self, page: Page) -> None:
        open_page(page, "demo-run", "&row=norm.weight")
        wait_shown(page, step=40)
        page.keyboard.press("f")
        expect(page.locator(".ns-main")).to_be_hidden()
        assert page.locator("#row-aside").bounding_box()["width"] == 1440
        assert "wide=1" in page.url
        page.reload()
        wait_shown(page, step=40)
        expect(page.locator("#row-wide")).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".ns-main")).to_be_hidden()
        page.locator("#row-wide").click()
        expect(page.locator(".ns-main")).to_be_visible()
        assert "wide=" not in page.url

    def test_rows_of_memory_are_hovered_in_units(self, page: Page, served: Served) -> None:
        served.fill(run="memory", steps=range(30), is_full=True)
        open_page(page, "memory", "&heatmap=saved_bytes")
        until(
            page, "nanscope.heatmap.fields?.statistic === 'saved_bytes' && nanscope.heatmap.kinds.length > 0"
        )
        box = page.locator("#heatmap-canvas").bounding_box()
        page.mouse.move(box["x"] + 30, box["y"] + 4)
        expect(page.locator("#tooltip")).to_contain_text("1 MiB")
        expect(page.locator("#heatmap-facts")).to_contain_text("bytes, log colour")
        group = "document.querySelector('#heatmap-select optgroup[label=\"Time\"]').hidden"
        assert page.evaluate(group) is True

    def test_rows_of_a_large_model_open_without_a_freeze(self, page: Page, served: Served) -> None:
        served.fill(run="large", steps=range(41), is_full=True, blocks=166)
        open_page(page, "large")
        until(page, "nanscope.heatmap.rows.length === 999")
        page.evaluate(
            "window.longest = 0; new PerformanceObserver(list => {"
            "for (const each of list.getEntries()) longest = Math.max(longest, each.duration) })"
            ".observe({entryTypes: ['longtask']})"
        )
        page.locator("#row-open").click()
        wait_shown(page, step=40)
        page.locator("#row-select").click()
        page.keyboard.type("blocks.165.mlp.2.b")
        page.get_by_role("option", name="blocks.165.mlp.2.bias").click()
        expect(page.locator("#row-head h2")).to_have_text("blocks.165.mlp.2.bias")
        assert page.get_by_role("option").count() <= 100
        print("longest task, ms:", page.evaluate("longest"))

    def test_page_of_a_run_at_level_off_says_that_recording_is_off(self, page: Page, served: Served) -> None:
        served.fill(run="off", steps=range(30), start_time=time.time() - 60)
        open_page(page, "off")
        expect(page.locator("#live-text")).to_contain_text("lagging")
        changed = {"run": "off", "kind": "level_changed", "severity": "info"}
        served.add_event(page_runs.event(30, **changed, time=time.time(), subject="off"))
        expect(page.locator("#live-text")).to_have_text("recording is off")
        assert "since step 30" in page.locator("#live-button").get_attribute("title")
        served.add_event(page_runs.event(31, **changed, time=time.time() + 1, subject="basic"))
        expect(page.locator("#live-text")).to_contain_text("lagging")
        served.fill(run="off", steps=range(31, 33), start_time=never_late())
        expect(page.locator("#live-text")).to_contain_text("live")
