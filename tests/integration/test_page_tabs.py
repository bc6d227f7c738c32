"""Views, address and Back in a real Chromium; the one button that says how things stand."""

from __future__ import annotations

import time

import pytest
from page_fixtures import Served, never_late, page_runs, until
from page_visits import RunsOfTheirOwn, visit
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
LOSS = "nanscope.painted('loss')"
UNDER_POINTER = """x => {
    const step = nanscope.stepAt(document.querySelector("[data-chart=heatmap]"), x);
    const tooltip = document.querySelector("#tooltip").innerText;
    return step !== null && nanscope.crosshair() === step && tooltip.includes(`step ${step}`);
}"""


def open_page(page: Page, served: Served, query: str = "") -> None:
    page.goto(served.server.address + query)
    until(page, "window.nanscope?.view?.run !== null && document.body.dataset.tab !== undefined")


def wait_drawn(page: Page) -> None:
    """Wait until the heatmap has its place: before it is drawn its canvas is of any size."""
    until(page, "document.querySelectorAll('#heatmap-labels button').length > 0")


def selected(page: Page) -> str:
    return page.locator("[role=tab][aria-selected=true]").inner_text().split()[0]


def drag(page: Page, first: float, last: float) -> None:
    """Drag over the strip, from one share of its width to another."""
    box = page.locator("#strip").bounding_box()
    page.mouse.move(box["x"] + first * box["width"], box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + last * box["width"], box["y"] + 10, steps=8)
    page.mouse.up()


class TestViewsOfManyRuns(RunsOfTheirOwn):
    """One page, on which each test visits a run of its own, or opens its address."""

    def test_tabs_go_by_click_and_arrows_and_stay_in_the_address(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(30))
        visit(page, f"run={own_run}")
        assert selected(page) == "Overview"
        page.locator("#tab-layers").click()
        assert selected(page) == "Layers" and "tab=layers" in page.url
        expect(page.locator("#plot-loss")).to_be_hidden()
        expect(page.locator("#heatmap-canvas")).to_be_visible()
        page.keyboard.press("ArrowRight")
        assert selected(page) == "Events" and "tab=events" in page.url
        expect(page.locator("#event-table")).to_be_visible()
        page.keyboard.press("End")
        assert selected(page) == "Controls"
        page.reload()
        until(page, "document.body.dataset.tab === 'controls'")
        expect(page.locator("#level-choice")).to_be_visible()
        assert page.locator("[role=tab][tabindex='0']").count() == 1

    def test_back_goes_through_views_and_events_and_stays_on_the_page(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(30), bad={20: "nan"})
        event = page_runs.event(20, run=own_run)
        served.add_event(event)
        visit(page, f"run={own_run}")
        page.locator("#tab-events").click()
        page.locator("#verdict-text").click()
        expect(page.locator("#event-aside")).to_be_visible()
        page.evaluate("window.loadedOnce = true")
        page.go_back()
        expect(page.locator("#event-aside")).to_be_hidden()
        assert selected(page) == "Events"
        page.go_back()
        until(page, "document.body.dataset.tab === 'overview'")
        page.go_forward()
        page.go_forward()
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
        assert page.evaluate("window.loadedOnce") is True

    def test_link_restores_zoom_pause_window_and_unfolded_layers(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(100))
        open_page(page, served, f"&run={own_run}&steps=20-50&open=embed")
        until(page, "nanscope.heatmap.rows.includes('embed.weight')")
        expect(page.locator("#live-text")).to_have_text("50 new")
        low, high = page.evaluate("(({ first, last }) => [first, last])(nanscope.painted('loss').axis)")
        assert (low, high) == (19.5, 49.5)
        page.keyboard.press("0")
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "true")
        assert "steps=" not in page.url
        open_page(page, served, f"&run={own_run}&newest=20")
        until(page, "nanscope.range?.[0] === 80")

    @pytest.mark.parametrize(
        "query",
        [
            f"&run={'x' * 300}",
            "&run={run}&rank=99999999999999999999",
            "&run={run}&rank=-3",
            "&run={run}&steps=9-3&newest=-1",
            "&run={run}&tab=nowhere&heatmap=" + "y" * 200,
        ],
    )
    def test_address_that_says_what_cannot_be_shows_the_run_all_the_same(
        self, page: Page, served: Served, own_run: str, query: str
    ) -> None:
        served.fill(run=own_run, steps=range(30), start_time=time.time() - 3)
        open_page(page, served, query.format(run=own_run))
        until(page, "nanscope.painted('loss')?.lines.some(line => line.x.length)")
        expect(page.locator("#live-text")).not_to_contain_text("connecting")

    def test_rank_that_the_run_has_not_is_said_and_replaced(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(30))
        served.fill(run=own_run, steps=range(12), rank=7)
        open_page(page, served, f"&run={own_run}&rank=9")
        expect(page.locator("#notice")).to_have_text("Rank 9 is not in this run; this is rank 7.")
        expect(page.locator("#rank-select")).to_have_value("rank 7")
        assert "rank=7" in page.url

    def test_verdict_names_the_origin_and_counts_what_followed(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(40), bad=dict.fromkeys(range(20, 40), "nan"))
        visit(page, f"run={own_run}")
        expect(page.locator("#verdict-text")).to_have_text("No warnings in 40 steps")
        victim = page_runs.event(
            21, run=own_run, kind="nonfinite_parameter", subject="embed.weight", message="Victim"
        )
        served.add_event(victim)
        expect(page.locator("#verdict-text")).to_have_text("Victim")
        served.add_event(page_runs.event(20, run=own_run))
        expect(page.locator("#verdict-text")).to_contain_text("NaN first at step 20")
        expect(page.locator("#verdict-consequences")).to_contain_text("1 consequence")
        expect(page.locator("#verdict")).to_have_attribute("data-severity", "critical")
        until(page, "document.title.includes('NaN at step 20 in blocks.1.norm1')")
        expect(page.locator("[data-count=events]")).to_have_text("2")

    def test_answer_to_an_older_wish_changes_nothing_that_is_drawn(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        """Its arrays are what the next message builds on; fields and arrays of a picture belong together."""
        served.fill(run=own_run, steps=range(60), is_full=True)
        visit(page, f"run={own_run}")
        wait_drawn(page)
        page.evaluate(
            "window.broken = 0; nanscope.on('heatmap', (map) => {"
            "const cells = map.fields.rowCount * nanscope.array('heatmap/steps').length;"
            "if (cells !== nanscope.array('heatmap/codes').length) window.broken += 1; })"
        )
        for name in ("activation_rms", "grad_norm", "update_ratio", "activation_rms") * 5:
            page.evaluate("name => { nanscope.change({ heatmap: name }); nanscope.drawHeatmap(); }", name)
            page.wait_for_timeout(30)
            page.evaluate("nanscope.drawHeatmap()")
        until(page, "nanscope.heatmap.fields.statistic === 'activation_rms'")
        assert page.evaluate("window.broken") == 0

    def test_crosshair_is_on_the_same_step_in_all_tracks_and_says_its_values(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(100), bad={40: "nan"})
        visit(page, f"run={own_run}")
        wait_drawn(page)
        until(page, "nanscope.painted('loss')?.lines.some(line => line.x.length)")
        box = page.locator("#heatmap-canvas").bounding_box()
        for step in (20, 40):
            page.mouse.move(box["x"] + box["width"] * (step + 0.5) / 100, box["y"] + 30)
            expect(page.locator("#crosshair-step > :first-child")).to_have_text(str(step))
            line = page.locator("#crosshair").bounding_box()
            for plot in ("loss", "grad_norm", "timeline"):
                pixel = page.evaluate(
                    "([id, step]) => { const plot = document.getElementById('plot-' + id);"
                    "const { l, w } = nanscope.boxOf(id), { first, last } = nanscope.painted('loss').axis;"
                    "return plot.getBoundingClientRect().left + l + w * (step - first) / (last - first) }",
                    [plot, step],
                )
                assert abs(pixel - line["x"]) <= 1.5
            drawn = page.evaluate(
                "step => { const [line] = nanscope.painted('loss').lines;"
                "return line.y[line.x.indexOf(step)] }",
                step,
            )
            shown = page.locator("#gutter-loss .ns-tile-value")
            expect(shown).to_have_text("NaN" if step == 40 else f"{drawn:.3g}")
            expect(page.locator("#gutter-loss .ns-tile-detail")).to_contain_text("now ")
        page.mouse.move(5, 5)
        expect(page.locator("#crosshair")).to_be_hidden()

    def test_arrow_keys_move_the_crosshair_and_are_read_out(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(100))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        page.locator("#tracks").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#crosshair-step > :first-child")).to_have_text("99")
        page.keyboard.press("Shift+ArrowLeft")
        expect(page.locator("#crosshair-step > :first-child")).to_have_text("89")
        expect(page.locator("#announcer")).to_contain_text("step 89: loss ")
        for _ in range(3):
            page.keyboard.press("Shift+ArrowRight")
        expect(page.locator("#crosshair-step > :first-child")).to_have_text("99")

    def test_crosshair_stays_while_a_live_run_goes_on(self, page: Page, served: Served, own_run: str) -> None:
        start = never_late()
        served.fill(run=own_run, steps=range(200), start_time=start)
        visit(page, f"run={own_run}")
        wait_drawn(page)
        until(page, "nanscope.newestStep === 199")
        box = page.locator("#heatmap-canvas").bounding_box()
        x = int(box["x"] + 0.4 * box["width"])  # as an event has it
        page.mouse.move(x, box["y"] + 20)
        for step in range(200, 260, 10):  # the axis moves on several times
            served.fill(run=own_run, steps=range(step, step + 10), start_time=start)
            until(page, "(step) => nanscope.range[1] > step", step)
            until(page, UNDER_POINTER, x)
        page.mouse.move(2, 2)
        page.locator("#tracks").focus()
        page.keyboard.press("Shift+ArrowLeft")
        chosen = page.evaluate("nanscope.crosshair()")
        served.fill(run=own_run, steps=range(260, 270), start_time=start)
        until(page, "nanscope.range[1] > 260")
        assert page.evaluate("nanscope.crosshair()") == chosen is not None
        until(page, f"document.querySelector('#crosshair-step').innerText.startsWith('{chosen}')")

    def test_origin_of_a_fault_is_a_line_through_all_tracks(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(100), bad=dict.fromkeys(range(50, 100), "nan"))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        expect(page.locator("#origin-line")).to_be_hidden()
        served.add_event(page_runs.event(50, run=own_run))
        expect(page.locator("#origin-line")).to_be_visible()
        box = page.locator("#heatmap-canvas").bounding_box()
        line = page.locator("#origin-line").bounding_box()
        assert abs(line["x"] + 1 - (box["x"] + box["width"] * 50 / 100)) <= 2
        page.evaluate("nanscope.zoom(0, 20)")
        expect(page.locator("#origin-line")).to_be_hidden()

    def test_lines_are_smoothed_with_the_raw_line_faint_below(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(100), bad={40: "nan"})
        visit(page, f"run={own_run}")
        until(page, f"{LOSS}?.lines[0]?.x.length > 0")
        raw = page.evaluate(f"[...{LOSS}.lines[0].y]")
        page.keyboard.press("e")
        until(page, f"{LOSS}.lines.length === 2")
        faint, smooth = page.evaluate(f"{LOSS}.lines.map(line => [line.alpha ?? 1, [...line.y]])")
        assert (faint[0], smooth[0]) == (0.3, 1) and faint[1] == raw
        total, share = 0.0, 0.0
        for value, drawn in zip(raw, smooth[1], strict=True):
            if value is None or value != value:
                assert drawn is None or drawn != drawn
                continue
            total, share = 0.6 * total + 0.4 * value, 0.6 * share + 0.4
            assert drawn == pytest.approx(total / share)
        assert "smooth=0.6" in page.url

    def test_lines_on_a_log_scale_and_without_outliers_stay_so_after_a_reload(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(200))
        visit(page, f"run={own_run}")
        until(page, f"{LOSS}?.lines[0]?.x.length > 0")
        page.locator("#lines > summary").click()
        page.locator("#lines-log").click()
        until(page, f"{LOSS}.scale.isLog")
        page.locator("#lines-clip").click()
        page.reload()
        until(page, f"{LOSS}?.scale.isLog")
        low, high = page.evaluate(f"[{LOSS}.scale.low, {LOSS}.scale.high]")
        values = sorted(page.evaluate(f"[...{LOSS}.lines[0].y]"))
        assert values[0] < values[2] and low < values[2] and high > values[-3]
        assert (low > values[0] / 1.2) and (high < values[-1] * 1.2)
        expect(page.locator("#lines-clip")).to_have_attribute("aria-pressed", "true")

    def test_strip_chooses_moves_and_follows_steps(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(200), start_time=time.time() - 20)
        visit(page, f"run={own_run}")
        until(page, "nanscope.range?.[1] === 200")
        drag(page, 0.25, 0.5)
        until(page, "Math.abs(nanscope.range[0] - 50) <= 1 && Math.abs(nanscope.range[1] - 100) <= 1")
        assert "steps=" in page.url
        drag(page, 0.375, 0.625)
        until(page, "Math.abs(nanscope.range[0] - 100) <= 2 && Math.abs(nanscope.range[1] - 150) <= 2")
        drag(page, 0.625, 1.0)
        until(page, "nanscope.range[0] >= 140 && nanscope.view.window !== null")
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "true")
        assert "newest=" in page.url and "steps=" not in page.url
        served.fill(run=own_run, steps=range(200, 260), start_time=time.time() - 26)
        until(page, "nanscope.range[1] === 260 && nanscope.range[0] > 190")
        page.locator("#strip").dblclick()
        until(page, "nanscope.range[0] === 0 && nanscope.range[1] === 260")

    def test_strip_of_a_run_that_counts_on_begins_at_its_first_step(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        served.fill(run=own_run, steps=range(41_000, 41_200), start_time=time.time() - 20)
        visit(page, f"run={own_run}")
        until(page, "nanscope.range?.join() === '41000,41200'")
        expect(page.locator("#strip")).to_have_attribute("aria-valuemin", "41000")
        drag(page, 0.25, 0.5)
        until(page, "Math.abs(nanscope.range[0] - 41050) <= 1 && Math.abs(nanscope.range[1] - 41100) <= 1")
        page.keyboard.press("s")
        page.keyboard.press("s")
        until(page, "nanscope.range.join() === '41000,41200'")

    def test_keys_zoom_around_the_crosshair_and_pan(self, page: Page, served: Served, own_run: str) -> None:
        served.fill(run=own_run, steps=range(200))
        visit(page, f"run={own_run}")
        wait_drawn(page)
        until(page, "nanscope.range[1] === 200")
        page.keyboard.press("w")
        until(page, "nanscope.range.join() === '50,150'")
        page.keyboard.press("d")
        until(page, "nanscope.range.join() === '75,175'")
        page.keyboard.press("a")
        page.keyboard.press("a")
        until(page, "nanscope.range.join() === '25,125'")
        page.keyboard.press("s")
        until(page, "nanscope.range.join() === '0,200'")
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "true")
