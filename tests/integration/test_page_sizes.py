"""The page in a real Chromium at the widths of phones, tablets and desks: nothing covers or cuts anything."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
DESK = {"width": 1440, "height": 900}
MODULE = "transformer.decoder.layers.11.self_attention.query_key_value"
LINE = "modeling_transformer.py:1226"
PARTS = (
    "[...document.querySelectorAll('.ns-header > *')].filter(part => part.checkVisibility())"
    ".map(part => part.getBoundingClientRect()).filter(box => box.width).map(box => [box.left, box.right])"
)
CUT = (
    "selector => [...document.querySelectorAll(selector)].filter(each => each.checkVisibility())"
    ".filter(each => each.scrollWidth > each.clientWidth).map(each => each.textContent)"
)
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
HIGHER = "document.documentElement.scrollHeight - document.documentElement.clientHeight"


def open_page(page: Page, served: Served, query: str = "") -> None:
    page.goto(served.server.address + query)


def wait_drawn(page: Page) -> None:
    until(page, "nanscope.painted?.('loss')?.lines.some(line => line.x.length)")
    until(page, "document.querySelectorAll('#heatmap-labels button').length > 0")


def size(page: Page, width: int, height: int = 844) -> None:
    """Set the window's size and wait until the charts have it."""
    page.set_viewport_size({"width": width, "height": height})
    until(page, "width => document.documentElement.clientWidth === width", arg=width)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def assert_row_is_free(page: Page, width: int) -> None:
    edges = page.evaluate(PARTS)
    assert edges[-1][1] <= width, edges
    assert all(left[1] <= right[0] for left, right in pairwise(edges)), edges


class TestPageOfAFault:
    """A silent run with a fault whose module has a long name: state and verdict have the longest texts."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, shared_served: Served) -> Page:
        served = shared_served
        served.fill(steps=range(30), bad=dict.fromkeys(range(20, 30), "nan"), start_time=time.time() - 900)
        message = f"NaN first at step 20 in {MODULE}, {LINE}, forward"
        event = page_runs.event(20, subject=MODULE, message=message)
        origin = msgspec.structs.replace(event.origin, module=MODULE)
        victim = page_runs.event(21, kind="nonfinite_parameter", subject="embed.weight", message="Victim")
        served.add_events([msgspec.structs.replace(event, origin=origin), victim])
        open_page(shared_page, served)
        expect(shared_page.locator("#verdict-text")).to_have_text(message)
        return shared_page

    @pytest.fixture(autouse=True)
    def at_desk(self, page: Page) -> Iterator[None]:
        yield
        page.set_viewport_size(DESK)

    @pytest.mark.parametrize("width", [390, 600, 700, 900, 1024, 1300])
    def test_sizes_parts_of_the_header_stand_beside_each_other(self, page: Page, width: int) -> None:
        size(page, width)
        assert_row_is_free(page, width)
        if width > 600:
            assert page.evaluate(CUT, "#live-button, #lines > summary") == []

    @pytest.mark.parametrize("width", [960, 961, 1300])
    def test_sizes_views_are_a_whole_bar_or_a_select(self, page: Page, width: int) -> None:
        size(page, width)
        assert page.locator("#tab-bar").is_visible() == (width > 960)
        assert page.locator("#tab-picker").is_visible() == (width <= 960)
        assert page.evaluate(CUT, "#tab-bar, #tab-picker") == []

    @pytest.mark.parametrize("width", [390, 600, 700])
    def test_sizes_verdict_says_what_and_the_line_where_it_is_narrow(self, page: Page, width: int) -> None:
        size(page, width)
        text = page.locator("#verdict-text").bounding_box()
        what = page.locator("#verdict-text > span").first.bounding_box()
        assert page.evaluate(CUT, "#verdict-text > span:first-child, #verdict-text .ns-code-line") == []
        module, line = (box.bounding_box() for box in page.locator("#verdict-text code").all())
        assert what["y"] + what["height"] <= line["y"] + 2
        assert module["width"] > 60
        assert line["y"] + line["height"] <= text["y"] + text["height"] + 2
        assert line["x"] + line["width"] <= text["x"] + text["width"] + 0.5 <= width
        more = page.locator("#verdict-consequences").bounding_box()
        assert more["x"] >= what["x"] + what["width"] and more["y"] + more["height"] <= line["y"] + 4

    def test_sizes_first_screen_ends_with_the_window(self, page: Page) -> None:
        for width, height in ((1440, 900), (1024, 768), (700, 800)):
            size(page, width, height)
            until(page, f"{HIGHER} === 0")
            bottom = page.locator("[data-chart=timeline]").evaluate(
                "card => card.getBoundingClientRect().bottom"
            )
            assert bottom == height


class TestPageOfAFullRun:
    """All that there is to measure, with points that pool steps."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, shared_served: Served) -> Page:
        bad = dict.fromkeys(range(1200, 1600), "nan")
        shared_served.fill(steps=range(1600), is_full=True, bad=bad)
        page_runs.add_records(shared_served.server.store, page_runs.profile(1500, 3))
        open_page(shared_page, shared_served, "&run=demo-run")
        wait_drawn(shared_page)
        return shared_page

    @pytest.fixture(autouse=True)
    def at_desk(self, page: Page) -> Iterator[None]:
        yield
        page.set_viewport_size(DESK)
        page.evaluate("nanscope.chooseTab('overview')")

    @pytest.mark.parametrize("tab", ["overview", "memory", "profile", "system"])
    def test_sizes_names_and_legends_beside_charts_are_whole(self, page: Page, tab: str) -> None:
        page.evaluate("tab => nanscope.chooseTab(tab)", tab)
        for width in (1440, 390):
            size(page, width, 2400)
            chart = {"overview": "loss", "memory": "memory", "profile": "step_time", "system": "utilisation"}[
                tab
            ]
            until(page, "id => document.querySelector(`#legend-${id}`).childElementCount > 0", arg=chart)
            # What is said of the phases is a sentence, which a phone has no room for.
            legends = ".ns-gutter:not(#gutter-step_phases) .ns-legend-name"
            assert page.evaluate(CUT, f".ns-track-name, .ns-gutter .ns-tile-line, {legends}") == []

    @pytest.mark.parametrize(
        "tab", ["overview", "layers", "events", "memory", "profile", "runs", "system", "controls"]
    )
    def test_sizes_no_view_is_wider_than_a_phone(self, page: Page, tab: str) -> None:
        page.evaluate("tab => nanscope.chooseTab(tab)", tab)
        size(page, 390)
        until(page, f"{WIDER} === 0")

    def test_sizes_rows_of_a_phone_are_named_by_their_blocks(self, page: Page) -> None:
        size(page, 390)
        until(page, "document.querySelector('#heatmap-labels').textContent.includes('blocks.0 ')")
        assert page.evaluate(CUT, ".ns-label-name") == []

    def test_sizes_table_of_values_names_nan_where_points_pool_steps(self, page: Page) -> None:
        size(page, 390)
        page.keyboard.press("t")
        row = page.locator("#values-lines tr", has=page.locator("th", has_text="loss")).first
        expect(row.locator("td")).to_have_text("NaN")
        page.keyboard.press("Escape")

    def test_sizes_reset_is_there_while_there_is_something_to_reset(self, page: Page) -> None:
        expect(page.locator("#reset-button")).to_be_hidden()
        page.evaluate("nanscope.zoom(100, 200)")
        page.locator("#reset-button").click()
        expect(page.locator("#reset-button")).to_be_hidden()


def test_sizes_many_events_do_not_cover_the_next_view(page: Page, served: Served) -> None:
    served.fill(steps=range(30))
    open_page(page, served)
    wait_drawn(page)
    memory = "document.querySelector('#tab-memory').getBoundingClientRect().left"
    before = page.evaluate(memory)
    served.add_events([page_runs.event(3, subject=f"layer {number}") for number in range(120)])
    badge = page.locator("[data-count=events]")
    expect(badge).to_have_text("99+")
    expect(badge).to_have_attribute("title", "120 critical, 0 warnings")
    box, padding = (
        badge.bounding_box(),
        page.locator("#tab-memory").evaluate("tab => Number.parseFloat(getComputedStyle(tab).paddingLeft)"),
    )
    assert page.evaluate(memory) == before
    assert box["x"] + box["width"] <= before + padding


def test_sizes_ranks_of_a_run_stand_in_the_header_where_there_are_several(page: Page, served: Served) -> None:
    served.fill(steps=range(30), start_time=time.time() - 900)
    open_page(page, served)
    wait_drawn(page)
    expect(page.locator(".ns-rank")).to_be_hidden()
    for rank in (1, 2):
        served.fill(steps=range(30), rank=rank, start_time=time.time() - 900)
    expect(page.locator(".ns-rank")).to_be_visible()
    for width in (390, 601, 1024, 1081, 1300):
        size(page, width)
        assert_row_is_free(page, width)
        assert page.locator("#tab-bar").is_visible() == (width > 1080)
        assert page.evaluate(CUT, "#tab-bar, #rank-select") == [], width


def test_sizes_a_page_without_runs_is_whole_on_a_phone(page: Page, served: Served) -> None:
    size(page, 390)
    open_page(page, served)
    expect(page.locator("#empty-state")).to_be_visible()
    expect(page.locator("#command")).to_have_text("dashboard run train.py")
    box = page.locator(".ns-empty-card").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    assert page.evaluate(WIDER) == 0
    assert page.evaluate(CUT, ".ns-snippet") == []


def test_sizes_compared_runs_are_named_beside_their_lines(page: Page, served: Served) -> None:
    for run in ("first-run", "second-run"):
        served.fill(run=run, steps=range(40), name=f"{run}.py")
    open_page(page, served, "&tab=runs&compare=first-run&compare=second-run")
    legend = page.locator("#legend-runs .ns-legend-line")
    expect(legend).to_have_count(2)
    expect(legend.first).to_contain_text("first-run.py")
    chart = page.locator("#runs-chart").bounding_box()
    assert chart["x"] == 0 and chart["width"] == 1440
    size(page, 390)
    assert page.evaluate(WIDER) == 0
