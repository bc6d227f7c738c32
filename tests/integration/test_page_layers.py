"""The view Layers in a real Chromium: filter, order, folds, keys, scales; all rows within reach."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from page_fixtures import Served, page_runs, until
from page_visits import OnePage, visit
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
MIDDLES = (
    "names => names.map(name => document.querySelector(name).getBoundingClientRect())"
    ".map(box => [(box.left + box.right) / 2, (box.top + box.bottom) / 2])"
)


def open_layers(page: Page, run: str, query: str = "") -> None:
    visit(page, f"run={run}&tab=layers{query}")
    until(page, "document.querySelectorAll('#layers-lines .ns-line').length > 0")


def paths(page: Page) -> list[str]:
    found: list[str] = page.evaluate("nanscope.heatmap.lines.map(line => line.path)")
    return found


class TestLayers(OnePage):
    """A run of 30 steps, and for tests that need something else one of their own."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        served.fill(steps=range(30))
        shared_page.goto(served.server.address + "&run=demo-run&tab=layers")
        until(shared_page, "document.querySelectorAll('#layers-lines .ns-line').length > 0")
        return shared_page

    @pytest.fixture
    def slow_name(self, page: Page) -> Iterator[None]:
        """Names are as long as a model makes them; "a" 60 times and a "!" tries 2^60 ways."""
        open_layers(page, "demo-run")
        page.evaluate("window.rows = nanscope.heatmap.rows")
        page.evaluate("nanscope.heatmap.rows = [...window.rows.slice(1), 'a'.repeat(60) + '!']")
        yield
        page.evaluate("nanscope.heatmap.rows = window.rows")

    def test_layers_filter_counts_names_its_error_and_stays_in_the_address(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="filter", steps=range(30), blocks=8)
        open_layers(page, "filter")
        expect(page.locator("#layers-count")).to_have_text("51")
        page.locator("#layers-tree").focus()
        page.keyboard.press("/")
        page.keyboard.type(r"blocks\.[5-6]\.")
        expect(page.locator("#layers-count")).to_have_text("12 of 51")
        until(page, "nanscope.heatmap.lines.length === 14")
        assert paths(page)[:2] == ["blocks.5", "blocks.5.norm1"]
        page.reload()
        until(page, "nanscope.heatmap.lines?.length === 14")
        expect(page.locator("#layers-filter")).to_have_value(r"blocks\.[5-6]\.")
        page.locator("#layers-filter").fill("blocks.(")
        expect(page.locator("#layers-error")).to_contain_text("Unterminated group")
        expect(page.locator("#layers-count")).to_have_text("51 of 51")
        page.keyboard.press("Escape")
        expect(page.locator("#layers-filter")).to_have_value("")
        expect(page.locator("#layers-error")).to_be_hidden()
        assert "filter=" not in page.url

    def test_layers_filter_without_a_match_says_none(self, page: Page) -> None:
        open_layers(page, "demo-run")
        page.locator("#layers-filter").fill("nosuch")
        expect(page.locator("#layers-count")).to_have_text("0 of 27")
        expect(page.locator("#layers-lines .ns-line")).to_have_count(0)

    def test_layers_sorts_by_value_and_by_the_first_bad_step(self, page: Page, served: Served) -> None:
        served.fill(run="sorted", steps=range(30), bad={20: "nan"})
        open_layers(page, "sorted")
        page.locator("#layers-sort").select_option("value")
        until(page, "nanscope.heatmap.lines.every(line => !line.isGroup)")
        last = (
            "nanscope.heatmap.lines.map(line => { const codes = nanscope.lineCodes(line);"
            "return codes[codes.length - 1]; })"
        )
        values = page.evaluate(last)
        assert len(values) == 27 and values == sorted(values, reverse=True)
        page.locator("#layers-sort").select_option("bad")
        until(page, "nanscope.view.sort === 'bad'")
        bad = page.evaluate(
            "nanscope.heatmap.lines.map(line => nanscope.lineCodes(line).findIndex(nanscope.isBadCode))"
        )
        assert bad[0] == 20 and bad[-1] == -1
        assert bad == sorted(bad, reverse=True)
        assert "sort=bad" in page.url

    def test_layers_fold_hides_rows_and_the_address_restores_it(self, page: Page) -> None:
        open_layers(page, "demo-run")
        line = page.locator("#layers-lines .ns-line[title='blocks.1']")
        expect(line).to_have_attribute("aria-expanded", "true")
        expect(line.locator(".ns-line-count")).to_have_text("12")
        line.click()
        until(page, "!nanscope.heatmap.lines.some(line => line.path === 'blocks.1.norm1')")
        assert "blocks.2.norm1" in paths(page)
        page.reload()
        until(
            page, "nanscope.heatmap.lines && !nanscope.heatmap.lines.some(line => line.parent === 'blocks.1')"
        )
        page.locator("#layers-fold").click()
        until(page, "!nanscope.heatmap.lines.some(line => line.parent === 'blocks.2')")
        page.locator("#layers-fold").click()
        until(page, "nanscope.heatmap.lines.some(line => line.parent === 'blocks.1')")
        assert "fold=" not in page.url

    def test_layers_rows_are_pinned_by_mouse_and_keys_and_stay_with_the_address(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="deep", steps=range(30), blocks=20)
        open_layers(page, "deep")
        page.locator(".ns-line[title='blocks.0.mlp.0']").hover()
        page.locator(".ns-line[title='blocks.0.mlp.0'] .ns-line-pin").click()
        until(page, "nanscope.heatmap.lines[0].path === 'blocks.0.mlp.0'")
        expect(page.locator("#row-aside")).to_be_hidden()
        page.locator("#layers-tree").focus()
        page.keyboard.press("End")
        expect(page.locator(".ns-line[aria-selected=true]")).to_have_attribute("title", "head")
        page.keyboard.press("Shift+Enter")
        until(page, "nanscope.heatmap.lines[1].path === 'head'")
        expect(page.locator(".ns-line[aria-selected=true]")).to_have_attribute(
            "aria-label", re.compile("^head, .*pinned$")
        )
        page.locator("#layers-filter").fill("blocks.19")
        expect(page.locator("#layers-count")).to_have_text("6 of 123")
        until(page, "nanscope.heatmap.lines.length === 9 && location.search.includes('filter=')")
        assert paths(page)[:3] == ["blocks.0.mlp.0", "head", "blocks.19"]
        page.reload()
        until(page, "nanscope.heatmap.lines?.length === 9")
        assert paths(page)[:3] == ["blocks.0.mlp.0", "head", "blocks.19"]
        page.locator("#layers-filter").fill("")
        page.keyboard.press("Escape")
        until(page, "nanscope.heatmap.lines.length > 100")
        page.locator("#layers-tree").evaluate("(tree) => { tree.scrollTop = 1e6; }")
        until(page, "document.querySelector('.ns-line:last-child').title === 'norm'")
        first = page.locator(".ns-line").first
        expect(first).to_have_attribute("title", "blocks.0.mlp.0")
        first.locator(".ns-line-pin").click()
        until(page, "nanscope.heatmap.lines[0].path === 'head' && !location.search.includes('blocks.0.mlp')")

    def test_layers_row_in_which_a_fault_began_is_marked_at_its_step_and_name(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="origin", steps=range(40), bad=dict.fromkeys(range(20, 40), "nan"))
        visit(page, "run=origin")
        until(page, "document.querySelectorAll('#heatmap-labels button').length > 0")
        expect(page.locator("#origin-mark")).to_be_hidden()
        served.add_event(page_runs.event(20, run="origin"))  # in blocks.1.norm1
        served.fill(run="origin", steps=range(40, 41), bad={40: "nan"})
        for tab, name in (("overview", ".ns-label"), ("layers", ".ns-line")):
            page.locator(f"#tab-{tab}").click()
            row = page.locator(f"{name}.ns-origin-row")
            expect(row).to_have_count(1)
            expect(row).to_contain_text("norm1")
            expect(page.locator("#origin-mark")).to_be_visible()
            mark, line, label = page.evaluate(
                MIDDLES, ["#origin-mark", "#origin-line", f"{name}.ns-origin-row"]
            )
            assert abs(mark[0] - line[0]) <= 2 and abs(mark[1] - label[1]) <= 2
        page.locator(".ns-line[title='blocks.1'] .ns-line-arrow").click()
        expect(page.locator(".ns-line.ns-origin-row")).to_have_attribute("title", "blocks.1")
        page.locator("#layers-filter").fill("^head")
        expect(page.locator("#origin-mark")).to_be_hidden()

    def test_layers_parameter_is_pinned_and_stays_with_the_address_while_its_layer_is_folded(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="pinned", steps=range(30))
        open_layers(page, "pinned")
        page.locator(".ns-line[title='blocks.0.mlp.0'] .ns-line-arrow").click()
        parameter = page.locator(".ns-line[title='blocks.0.mlp.0.bias']")
        parameter.hover()
        parameter.locator(".ns-line-pin").click()
        until(page, "nanscope.heatmap.lines[0].path === 'blocks.0.mlp.0.bias'")
        assert paths(page).count("blocks.0.mlp.0.bias") == 1
        page.locator(".ns-line[title='blocks.0.mlp.0'] .ns-line-arrow").click()
        until(page, "!nanscope.heatmap.lines.some(line => line.path === 'blocks.0.mlp.0.weight')")
        assert "pinrow=blocks.0.mlp.0.bias" in page.url and "open=" not in page.url
        page.reload()
        until(page, "nanscope.heatmap.lines?.[0]?.path === 'blocks.0.mlp.0.bias'")
        assert "blocks.0.mlp.0.weight" not in paths(page)
        expect(page.locator(".ns-line").first).to_have_text(re.compile("^blocks.0.mlp.0.bias"))
        served.fill(run="pinned", steps=range(30, 40))
        until(page, "nanscope.lineCodes(nanscope.heatmap.lines[0]).length === 40")
        page.locator("#layers-tree").focus()
        page.keyboard.press("Home")
        page.keyboard.press("Shift+Enter")
        until(page, "nanscope.heatmap.lines[0].path === 'embed' && !location.search.includes('pinrow')")

    def test_layers_by_keyboard_moves_folds_and_opens_histograms(self, page: Page, served: Served) -> None:
        served.fill(run="full", steps=range(50), is_full=True)
        page.goto(served.server.address + "&run=full&tab=layers")  # where the keys are at no line yet
        until(page, "document.querySelectorAll('#layers-lines .ns-line').length > 0")
        until(page, "nanscope.hasHistograms()")
        tree = page.locator("#layers-tree")
        tree.focus()
        for _ in range(2):
            page.keyboard.press("ArrowDown")
        expect(page.locator(".ns-line[aria-selected=true]")).to_have_attribute("title", "blocks.0")
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".ns-line[aria-selected=true]")).to_have_attribute("aria-expanded", "false")
        page.keyboard.press("ArrowRight")
        expect(page.locator(".ns-line[aria-selected=true]")).to_have_attribute("aria-expanded", "true")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator("#row-head h2")).to_have_text("blocks.0.norm1")
        assert "row=blocks.0.norm1" in page.url

    def test_layers_all_of_833_are_reached_by_name(self, page: Page, served: Served) -> None:
        served.fill(run="large", steps=range(30), blocks=138)
        open_layers(page, "large")
        until(page, "nanscope.heatmap.rows.length === 831")
        sizes: dict[str, Any] = page.evaluate(
            "(() => { const line = document.querySelector('.ns-line').getBoundingClientRect();"
            "const canvas = document.querySelector('#heatmap-canvas').getBoundingClientRect();"
            "return { line: line.height, bottom: canvas.bottom, window: window.innerHeight }; })()"
        )
        assert sizes["line"] >= 14 and sizes["bottom"] <= sizes["window"]
        seen: set[str] = set()
        tree = page.locator("#layers-tree")
        tree.focus()
        page.keyboard.press("Home")
        titles = "[...document.querySelectorAll('.ns-line')].map(line => line.title)"
        total = len(paths(page))
        while True:
            page.evaluate("nanscope.drawHeatmap()")
            seen.update(page.evaluate(titles))
            before = page.evaluate("document.querySelector('#layers-tree').scrollTop")
            page.keyboard.press("PageDown")
            page.wait_for_timeout(30)
            if page.evaluate("document.querySelector('#layers-tree').scrollTop") == before:
                break
        assert seen == set(paths(page)) and len(seen) == total == 831 + 138
        expect(page.locator(".ns-line[aria-selected=true]")).to_have_attribute("title", "head")

    def test_layers_scales_are_relative_to_row_and_past(self, page: Page) -> None:
        open_layers(page, "demo-run", "&scale=past")
        expect(page.locator("#heatmap-scale")).to_contain_text("\u00d7\u00bc")
        expect(page.locator("#layers-scales [aria-pressed=true]")).to_have_text("Own past")
        # Own past: a value as large as the median before it has the same colour in every row.
        relative = page.evaluate(
            "(() => { const line = nanscope.heatmap.lines[0]; const codes = [...nanscope.lineCodes(line)];"
            "const { FIRST, CODES, DECADES } = nanscope.codes;"
            "const logs = codes.map(c => c / CODES * DECADES);"
            "const before = logs.slice(0, 7).sort((a, b) => a - b);"
            "const share = (logs[7] - before[3] - Math.log10(1 / 4)) / Math.log10(64);"
            "return [nanscope.scaledCodes(line)[7], FIRST + share * CODES]; })()"
        )
        assert relative[0] == pytest.approx(relative[1], abs=2)
        page.locator("#layers-scales button", has_text="Per row").click()
        expect(page.locator("#heatmap-scale")).to_contain_text("percentile")
        ends = page.evaluate(
            "nanscope.heatmap.lines.map(line => [Math.min(...nanscope.scaledCodes(line)), "
            "Math.max(...nanscope.scaledCodes(line))])"
        )
        assert all(low == 5 and high == 65535 for low, high in ends)
        assert "scale=row" in page.url

    def test_layers_values_are_those_of_the_newest_step(self, page: Page, served: Served) -> None:
        served.fill(run="inf", steps=range(30), bad={29: "inf"})
        open_layers(page, "inf")
        expect(page.locator("#layers-values-head")).to_contain_text("at 29")
        expect(page.locator("#layers-values > div").first).to_have_text("Inf")
        expect(page.locator(".ns-line[title=head]")).to_have_attribute(
            "aria-label", re.compile(r"^head, 0\.00\d+$")
        )

    def test_overview_after_layers_shows_all_rows_and_labels_the_last(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="nine", steps=range(30), blocks=9)
        open_layers(page, "nine", "&filter=norm1")
        page.locator("#tab-overview").click()
        until(page, "nanscope.heatmap.shown.length === nanscope.heatmap.rows.length")
        labels = page.locator("#heatmap-labels button")
        expect(labels.last).to_contain_text("head")
        assert labels.first.evaluate("each => each.clientHeight") >= 12
        tops = labels.evaluate_all("all => all.map(each => parseFloat(each.style.top))")
        assert all(after - before >= 12 for before, after in itertools.pairwise(tops))

    def test_layers_pattern_that_tries_for_ever_is_given_up_and_the_page_goes_on(
        self, page: Page, slow_name: None
    ) -> None:
        page.evaluate(
            "window.longest = 0; let before = performance.now(); window.watch = setInterval(() => {"
            "const now = performance.now();"
            "window.longest = Math.max(window.longest, now - before); before = now; }, 20)"
        )
        field = page.locator("#layers-filter")
        for pattern in ("(a+)+$", "(a|aa)+$", "(a|a)*b"):
            field.fill(pattern)
            expect(page.locator("#layers-error")).to_contain_text("takes too long")
            expect(page.locator("#layers-count")).to_have_text("27 of 27")
        field.fill("norm1$")
        expect(page.locator("#layers-error")).to_be_hidden()
        expect(page.locator("#layers-count")).to_have_text("4 of 27")
        # Tried on the page's own thread, one of them would have stopped its clock for good.
        assert page.evaluate("window.longest") < 10_000
        page.evaluate("clearInterval(window.watch)")

    def test_layers_filter_follows_what_is_typed_while_another_pattern_is_tried(
        self, page: Page, slow_name: None
    ) -> None:
        field = page.locator("#layers-filter")
        field.fill("(a+)+$")
        field.fill("norm1$")
        expect(page.locator("#layers-count")).to_have_text("4 of 27")
        field.fill("")
        expect(page.locator("#layers-count")).to_have_text("27")
        expect(page.locator("#layers-error")).to_be_hidden()

    def test_layers_hostile_pattern_in_the_address_stays_text(self, page: Page, served: Served) -> None:
        filter_ = "%3Cimg src%3Dx onerror%3D%22window.hurt%3D1%22%3E("
        hostile = f"&filter={filter_}&sort=__proto__&scale=constructor"
        page.goto(served.server.address + "&run=demo-run&tab=layers" + hostile)
        until(page, "document.querySelectorAll('#layers-lines .ns-line').length > 0")
        expect(page.locator("#layers-error")).to_be_visible()
        assert page.evaluate("window.hurt") is None
        assert page.evaluate("nanscope.heatmap.lines.length") > 0
