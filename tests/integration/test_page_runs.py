"""The table of all runs in a real Chromium: search, ticks, stars, notes, deletion with undo, comparison."""

from __future__ import annotations

import pytest
from page_fixtures import BOTH_ENGINES, Served, never_late, page_runs, until
from page_visits import OnePage, visit
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

HOSTILE = "<img src=x onerror=alert(1)>"


def fill(served: Served) -> None:
    """Three runs, the newest live; the two older ones have the same losses up to step 60."""
    served.fill(steps=range(80), run="run-a", start_time=1_700_000_000.0)
    served.fill(
        steps=range(80), run="run-b", start_time=1_700_000_900.0, bad=dict.fromkeys(range(60, 80), "nan")
    )
    served.add_event(page_runs.event(60, run="run-b"))
    served.fill(steps=range(20), run="run-c", start_time=never_late(), name=HOSTILE)
    for run in ("run-a", "run-b"):
        served.end_run(run=run)


def open_runs(page: Page, served: Served, query: str = "") -> None:
    page.goto(f"{served.server.address}&tab=runs{query}")
    expect(page.locator("#runs-body [data-run]").first).to_be_visible()


def go_to_runs(page: Page) -> None:
    visit(page, "tab=runs")
    expect(page.locator("#runs-body [data-run]")).to_have_count(3)


def row(page: Page, run: str):  # type: ignore[no-untyped-def]
    return page.locator(f"#runs-body [data-run={run}]")


class TestRuns(OnePage):
    """Three runs, none of them ticked, starred or with a note when a test begins."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        fill(served)
        open_runs(shared_page, served)
        return shared_page

    def test_runs_stand_newest_first_and_a_click_shows_one(self, page: Page) -> None:
        go_to_runs(page)
        ids = page.locator("#runs-body [data-run]").evaluate_all("rows => rows.map(row => row.dataset.run)")
        assert ids == ["run-c", "run-b", "run-a"]
        expect(row(page, "run-c").locator(".ns-runs-open")).to_have_text(HOSTILE)
        expect(row(page, "run-b").locator(".ns-runs-faults")).to_contain_text("1 critical")
        expect(row(page, "run-b").locator(".ns-runs-step")).to_have_text("79")
        row(page, "run-a").locator(".ns-runs-open").click()
        until(page, "document.body.dataset.tab === 'overview' && nanscope.view.run === 'run-a'")
        page.go_back()
        until(page, "document.body.dataset.tab === 'runs'")

    def test_search_finds_by_name_note_and_state_and_stays_in_the_address(
        self, page: Page, served: Served
    ) -> None:
        served.server.store.mark_run("run-a", note="warm-up 4k")
        go_to_runs(page)
        page.locator("#runs-search input").fill("ended warm")
        expect(page.locator("#runs-body [data-run]")).to_have_count(1)
        expect(page.locator("#runs-count")).to_have_text("1 of 3 runs")
        until(page, "location.search.includes('find=ended+warm')")
        page.reload()
        expect(page.locator("#runs-body [data-run]")).to_have_count(1)
        expect(page.locator("#runs-search input")).to_have_value("ended warm")
        page.locator("#runs-search input").fill("")
        expect(page.locator("#runs-body [data-run]")).to_have_count(3)
        served.server.store.mark_run("run-a", note="")

    def test_ticks_of_runs_that_are_not_there_are_dropped(self, page: Page, served: Served) -> None:
        open_runs(page, served, "&compare=gone&compare=run-a&compare=" + "x" * 200)
        expect(page.locator("#runs-ticked")).to_have_text("1 of at most 5 ticked")
        until(page, "!location.search.includes('gone') && location.search.includes('compare=run-a')")

    def test_live_run_goes_on_in_its_row(self, page: Page, served: Served) -> None:
        go_to_runs(page)
        expect(row(page, "run-c").locator(".ns-runs-step")).to_have_text("19")
        served.fill(steps=range(20, 45), run="run-c", start_time=never_late(), name=HOSTILE)
        expect(row(page, "run-c").locator(".ns-runs-step")).to_have_text("44")


@BOTH_ENGINES
class TestRunsOfEitherStore(OnePage):
    """The same three runs."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        fill(served)
        open_runs(shared_page, served)
        return shared_page

    def test_two_ticked_runs_say_where_they_part_and_lead_there(self, page: Page) -> None:
        go_to_runs(page)
        for run in ("run-a", "run-b"):
            row(page, run).locator("input[type=checkbox]").check()
        expect(page.locator(".ns-runs-headline")).to_have_text(
            "They differ from step 60; the 60 steps before it are equal."
        )
        until(page, "/newest .+, .+/.test(document.querySelector('#runs-chart').ariaLabel)")
        assert "compare=run-a&compare=run-b" in page.url
        page.reload()
        expect(page.locator(".ns-runs-headline")).to_contain_text("step 60")
        page.locator("[data-show-run=run-b]").click()
        until(page, "nanscope.view.run === 'run-b' && document.body.dataset.tab === 'overview'")
        until(page, "nanscope.range?.[0] === 10 && nanscope.view.paused")
        page.go_back()
        until(page, "document.body.dataset.tab === 'runs'")
        row(page, "run-b").locator("input[type=checkbox]").uncheck()
        expect(page.locator(".ns-runs-headline")).to_have_count(0)
        expect(page.locator("#runs-chart")).to_be_hidden()

    def test_star_and_note_are_written_from_the_keyboard(self, page: Page, served: Served) -> None:
        go_to_runs(page)
        star = row(page, "run-a").locator(".ns-runs-star")
        star.focus()
        page.keyboard.press("Enter")
        expect(star).to_have_attribute("aria-pressed", "true")
        expect(row(page, "run-a").locator(".ns-runs-remove")).to_be_disabled()
        note = row(page, "run-a").locator(".ns-runs-edit")
        note.focus()
        page.keyboard.press("Enter")
        page.keyboard.type(HOSTILE)
        page.keyboard.press("Enter")
        expect(note).to_have_text(HOSTILE)
        expect(note).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.type("not this")
        page.keyboard.press("Escape")
        expect(note).to_have_text(HOSTILE)
        page.reload()
        expect(row(page, "run-a").locator(".ns-runs-edit")).to_have_text(HOSTILE)
        mark = served.server.store.marks()["run-a"]
        assert (mark.note, mark.starred) == (HOSTILE, True)
        served.server.store.mark_run("run-a", note="", starred=False)


def test_no_more_than_five_runs_can_be_ticked(page: Page, served: Served) -> None:
    for number in range(7):
        served.fill(steps=range(3), run=f"run-{number}", start_time=1_700_000_000.0 + number)
    open_runs(page, served)
    boxes = page.locator("#runs-body input[type=checkbox]")
    for number in range(5):
        boxes.nth(number).check()
    expect(boxes.nth(5)).to_be_disabled()
    expect(page.locator("#runs-ticked")).to_have_text("5 of at most 5 ticked")


@BOTH_ENGINES
def test_deletion_can_be_taken_back_for_some_seconds(page: Page, served: Served) -> None:
    fill(served)
    open_runs(page, served, "&run=run-b")
    expect(row(page, "run-c").locator(".ns-runs-remove")).to_be_disabled()
    page.clock.install()
    row(page, "run-a").locator(".ns-runs-remove").click()
    expect(page.locator("#runs-undo")).to_contain_text("Deleted train.py \u00b7 run-a. ")
    page.locator("#runs-undo button").click()
    expect(page.locator("#runs-undo")).to_be_empty()
    row(page, "run-b").locator(".ns-runs-remove").click()
    page.locator("#tab-events").click()
    expect(page.locator("#runs-undo button")).to_be_visible()
    page.locator("#tab-runs").click()
    page.clock.run_for(9000)
    expect(row(page, "run-b")).to_have_count(0)
    assert [run.run for run in served.server.store.runs()] == ["run-c", "run-a"]
    until(page, "nanscope.view.run === 'run-c' && document.body.dataset.tab === 'runs'")
