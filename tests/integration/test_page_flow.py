"""Gradient flow in a real Chromium: its numbers against numpy, the step by slider and keys, many layers."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from page_fixtures import BOTH_ENGINES, Served, page_runs, until
from page_visits import OnePage, visit
from playwright.sync_api import Page, expect

from probe.wire.columns import unpack_column

sys.path.insert(0, str(Path(__file__).parents[1] / "dashboard"))
import hostile_run

pytestmark = pytest.mark.browser

LAYOUT = page_runs.layout()
LAYERS = [layer.name for layer in LAYOUT.layers]


def open_flow(page: Page, served: Served, query: str = "") -> None:
    page.goto(served.server.address + "&run=demo-run&tab=layers&flow=1" + query)
    until(page, "document.body.classList.contains('ns-flow') && nanscope.heatmap.rows.length > 0")
    expect(page.locator("#flow-step")).to_have_text(re.compile(r"\d"))


def go_to_flow(page: Page, run: str, query: str = "") -> None:
    visit(page, f"run={run}&tab=layers&flow=1{query}")
    until(page, "document.body.classList.contains('ns-flow') && nanscope.heatmap.rows.length > 0")
    expect(page.locator("#flow-step")).to_have_text(re.compile(r"\d"))


def norms(step: int) -> np.ndarray:
    """(layers,) L2 norms of a step, of two parameters each."""
    values = unpack_column(page_runs.frame(step, LAYOUT, time=0.0).columns[0]).reshape(-1, 2)
    return np.sqrt(np.sum(values**2, axis=1))


def entries(page: Page) -> list[dict[str, float | None]]:
    """Values instead of codes; bars are null where there is none."""
    found: list[dict[str, float | None]] = page.evaluate(
        "nanscope.flow().entries.map(e => ({name: e.name, code: e.now, side: e.side,"
        "now: nanscope.codeValue(e.now),"
        "low: e.low && nanscope.codeValue(e.low), median: e.median && nanscope.codeValue(e.median),"
        "high: e.high && nanscope.codeValue(e.high)}))"
    )
    return found


@BOTH_ENGINES
def test_flow_bars_and_dots_are_the_percentiles_of_the_steps_before(page: Page, served: Served) -> None:
    served.fill(steps=range(260))
    open_flow(page, served, "&at=240")
    expect(page.locator("#flow-step")).to_have_text("240")
    before = np.log10(np.stack([norms(step) for step in range(40, 240)]))
    low, median, high = np.percentile(before, (5, 50, 95), axis=0)
    now = np.log10(norms(240))
    shown = entries(page)
    assert [each["name"] for each in shown] == LAYERS
    for key, wanted in (("now", now), ("low", low), ("median", median), ("high", high)):
        assert [math.log10(each[key]) for each in shown] == pytest.approx(wanted.tolist(), abs=2e-3), key
    sides = [1 if now[row] > high[row] else -1 if now[row] < low[row] else 0 for row in range(len(LAYERS))]
    clear = np.minimum(abs(now - high), abs(now - low)) > 5e-3
    assert [each["side"] for each in np.array(shown)[clear]] == np.array(sides)[clear].tolist()
    listed = page.locator("#flow-side tbody th").all_inner_texts()
    assert set(listed) == {each["name"] for each in shown if each["side"]} and listed
    expect(page.locator("#flow-bar-words")).to_have_text("p5\u2013p95 and median of the 200 steps before")


class TestFlow(OnePage):
    """A run of 40 steps, and for tests that need something else one of their own."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        served.fill(steps=range(40))
        open_flow(shared_page, served)
        return shared_page

    @pytest.fixture(scope="class")
    @classmethod
    def full(cls, served: Served) -> str:
        """A run that measures all."""
        served.fill(run="full", steps=range(200), is_full=True)
        return "full"

    def test_flow_step_moves_by_keys_and_pointer_and_stays_in_the_address(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="moved", steps=range(60))
        go_to_flow(page, "moved")
        expect(page.locator("#flow-step")).to_have_text("59")
        slider = page.locator("#flow-steps")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Shift+ArrowLeft")
        expect(page.locator("#flow-step")).to_have_text("48")
        expect(slider).to_have_attribute("aria-valuenow", "48")
        expect(slider).to_have_attribute(
            "aria-valuetext", re.compile(r"^step 48: 27 layers, \d+ outside of their bar")
        )
        until(page, "location.search.includes('at=48')")
        page.reload()
        expect(page.locator("#flow-step")).to_have_text("48")
        served.fill(run="moved", steps=range(60, 65))
        until(page, "nanscope.array('heatmap/steps').length === 65")
        expect(page.locator("#flow-step")).to_have_text("48")
        page.locator("#flow-steps").focus()
        page.keyboard.press("End")
        expect(page.locator("#flow-step")).to_have_text("64")
        until(page, "!location.search.includes('at=')")
        served.fill(run="moved", steps=range(65, 67))
        expect(page.locator("#flow-step")).to_have_text("66")
        box = page.locator("#flow-steps").bounding_box()
        page.mouse.click(box["x"] + 60 + (box["width"] - 72) * 10.5 / 67, box["y"] + 40)
        expect(page.locator("#flow-step")).to_have_text("10")
        page.locator("#tracks").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#flow-step")).to_have_text("65")

    def test_flow_names_nan_and_says_since_when(self, page: Page, served: Served) -> None:
        served.fill(run="nan", steps=range(40), bad=dict.fromkeys(range(30, 40), "nan"))
        go_to_flow(page, "nan")
        side = page.locator("#flow-side")
        expect(side.locator("h3").first).to_have_text("NaN or Inf at step 39")
        expect(side.locator("tbody tr").first).to_have_text(re.compile(r"embed\s*since step 30"))
        bad = [each["name"] for each in entries(page) if 0 < each["code"] < 4]
        assert 0 < len(bad) < len(LAYERS)
        assert f"{len(bad)} NaN or Inf" in page.locator("#flow-facts").inner_text()
        expect(side).to_contain_text(f"and {len(bad) - 8} more")
        side.locator("button", has_text="embed").first.click()
        expect(page.locator("#row-head h2")).to_have_text("embed")

    def test_flow_layers_are_read_by_keys(self, page: Page) -> None:
        go_to_flow(page, "demo-run", "&at=30")
        canvas = page.locator("#flow-canvas")
        canvas.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        said = re.compile(rf"^{re.escape(LAYERS[1])}, step 30: 0?\.?\d.*bar; median .*, p5\u2013p95 .* to ")
        expect(canvas).to_have_attribute("aria-valuetext", said)
        page.keyboard.press("ArrowDown")
        expect(canvas).to_have_attribute("aria-valuetext", re.compile(rf"^{re.escape(LAYERS[1])}, step 29: "))
        page.keyboard.press("End")
        expect(canvas).to_have_attribute("aria-valuetext", re.compile("^head, "))
        page.keyboard.press("Enter")
        expect(page.locator("#row-head h2")).to_have_text("head")

    def test_flow_filter_counts_and_the_table_has_the_same_rows(self, page: Page) -> None:
        go_to_flow(page, "demo-run")
        page.keyboard.press("/")
        page.keyboard.type("mlp")
        expect(page.locator("#layers-count")).to_have_text("8 of 27")
        until(page, "nanscope.flow().entries.length === 8")
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("t")
        rows = page.locator("#values-rows tr")
        expect(rows).to_have_count(8)
        expect(rows.first).to_contain_text("blocks.0.mlp.0")
        expect(rows.first.locator("td")).to_have_text(re.compile(r"bar; median .*, p5\u2013p95 "))
        page.keyboard.press("Escape")
        page.locator("#flow-switch button", has_text="Heatmap").click()
        until(page, "nanscope.heatmap.lines.length > 8 && !document.body.classList.contains('ns-flow')")
        expect(page.locator("#layers-tree")).to_be_visible()
        assert "flow=" not in page.url

    def test_flow_without_a_match_says_so(self, page: Page) -> None:
        go_to_flow(page, "demo-run", "&filter=nosuch")
        expect(page.locator("#flow-side")).to_contain_text("No layer has this name.")
        expect(page.locator("#layers-count")).to_have_text("0 of 27")

    @pytest.mark.parametrize("statistic", ["update_ratio", "activation_rms", "saved_bytes"])
    def test_flow_shows_any_statistic_of_the_heatmap(self, page: Page, full: str, statistic: str) -> None:
        go_to_flow(page, full, f"&heatmap={statistic}")
        until(page, f"nanscope.heatmap.fields?.statistic === '{statistic}'")
        until(page, "nanscope.flow().entries.length > 5")
        expect(page.locator("#flow-facts")).to_contain_text(
            "modules" if statistic != "update_ratio" else "layers"
        )
        assert all(each["code"] >= 5 and each["median"] for each in entries(page))

    def test_flow_of_thousands_of_layers_is_a_band_with_all_of_them(self, page: Page, served: Served) -> None:
        served.fill(run="large", steps=range(40), blocks=833)
        go_to_flow(page, "large")
        until(page, "nanscope.heatmap.rows.length === 5001 && nanscope.flow().entries.length === 5001")
        expect(page.locator("#flow-facts")).to_contain_text("5,001 layers")
        took = page.evaluate(
            "(() => { const began = performance.now(); nanscope.drawFlow();"
            "return performance.now() - began; })()"
        )
        print("ms for a drawing of 5,001 layers:", took)
        page.locator("#layers-filter").fill(r"^blocks\.\d\.mlp")
        expect(page.locator("#layers-count")).to_have_text("20 of 5,001")
        until(page, "nanscope.flow().entries.length === 20")

    def test_flow_of_hostile_names_shows_them_as_text(self, page: Page, served: Served) -> None:
        hostile_run.fill_hostile(served.server.store)
        served.server.notify()
        visit(page, f"run={hostile_run.RUN}&tab=layers&flow=1&at=5")
        until(
            page,
            "nanscope.heatmap.rows.length > 5 && document.getElementById('flow-step').textContent !== ''",
        )
        page.locator("#flow-canvas").focus()
        for _ in hostile_run.CORPUS:
            page.keyboard.press("ArrowRight")
        page.keyboard.press("t")
        expect(page.locator("#values-rows")).to_contain_text("<script>window.hurt=1</script>")
        shown = page.locator("#flow-side").inner_text() + page.locator("#values-rows").inner_text()
        assert not set(hostile_run.HIDDEN.replace("\t", "")) & set(shown)
        assert page.evaluate("window.hurt") is None
