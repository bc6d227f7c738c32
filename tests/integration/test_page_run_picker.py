"""The run picker of the header in a real Chromium: search, arrows, ticks, rows in view alone."""

from __future__ import annotations

import msgspec
import pytest
from page_fixtures import BOTH_ENGINES, Served, never_late, page_runs, until
from page_visits import OnePage, visit
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

HOSTILE = "<img src=x onerror='window.hurt=1'>\u202egpj"
MANY = 2000


def open_picker(page: Page) -> None:
    page.locator("#run-select").click()
    expect(page.locator("#run-picker")).to_be_visible()
    expect(page.locator(".ns-picker-field")).to_be_focused()


def rows(page: Page):  # type: ignore[no-untyped-def]
    return page.locator("#run-picker-rows [data-run]")


def fill(served: Served) -> None:
    served.fill(steps=range(80), run="run-a", start_time=1_700_000_000.0, name="first.py")
    served.fill(steps=range(80), run="run-b", start_time=1_700_000_900.0, name=HOSTILE)
    served.add_event(page_runs.event(60, run="run-b"))
    served.add_event(page_runs.event(9, run="run-b", kind="loss_spike", severity="warning", subject="x"))
    served.fill(steps=range(20), run="run-c", start_time=never_late(), name="third.py")
    for run in ("run-a", "run-b"):
        served.end_run(run=run)


class TestPicker(OnePage):
    """Three runs, the newest of them live."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        fill(served)
        shared_page.goto(served.server.address)
        until(shared_page, "window.nanscope?.runs?.length === 3")
        return shared_page

    def test_picker_says_of_each_run_how_it_stands(self, page: Page) -> None:
        visit(page, "")
        expect(page.locator("#run-select")).to_have_attribute("aria-label", "Run: third.py, live")
        open_picker(page)
        ids = rows(page).evaluate_all("rows => rows.map(row => row.dataset.run)")
        assert ids == ["run-c", "run-b", "run-a"]
        hostile = rows(page).nth(1)
        expect(hostile.locator(".ns-picker-run")).to_have_text(HOSTILE.replace("\u202e", "[U+202E]"))
        expect(hostile).to_contain_text("step 79")
        expect(hostile).to_contain_text("1 critical")
        expect(hostile).to_contain_text("1 warning")
        expect(hostile).to_contain_text("started")
        expect(rows(page).nth(0)).to_contain_text("live")
        expect(rows(page).nth(0)).to_contain_text("no faults")
        expect(rows(page).nth(2)).to_contain_text("ended")
        assert page.evaluate("window.hurt") is None and page.locator("#run-picker img").count() == 0

    def test_picker_chooses_by_arrows_and_enter_and_gives_the_focus_back(self, page: Page) -> None:
        visit(page, "")
        until(page, "window.nanscope?.runs?.length === 3")
        page.locator("#run-select").focus()
        page.keyboard.press("ArrowDown")
        expect(page.locator("#run-picker")).to_be_visible()
        expect(page.locator(".ns-picker-row.ns-active")).to_have_attribute("data-run", "run-c")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        active = page.locator(".ns-picker-row.ns-active")
        expect(active).to_have_attribute("data-run", "run-a")
        expect(page.locator(".ns-picker-field")).to_have_attribute(
            "aria-activedescendant", str(active.get_attribute("id"))
        )
        expect(page.locator("#run-picker-name")).to_contain_text("first.py \u00b7 run-a")
        page.keyboard.press("Enter")
        expect(page.locator("#run-picker")).to_be_hidden()
        expect(page.locator("#run-select")).to_be_focused()
        until(page, "nanscope.view.run === 'run-a' && nanscope.view.isOwnChoice")
        expect(page.locator("#run-select")).to_have_attribute("value", "run-a")
        expect(page.locator("#run-name")).to_have_text("first.py")
        page.go_back()
        until(page, "nanscope.view.run === 'run-c'")
        expect(page.locator("#run-select")).to_have_attribute("value", "run-c")

    def test_picker_searches_without_touching_the_name_and_escape_leaves_all_as_it_was(
        self, page: Page
    ) -> None:
        visit(page, "")
        until(page, "window.nanscope?.runs?.length === 3")
        open_picker(page)
        page.keyboard.type("n p0 ended FIRST")
        expect(page.locator("#run-picker-name")).to_have_text("No run of that name")
        page.locator(".ns-picker-field").fill("ended FIRST")
        expect(rows(page)).to_have_count(1)
        expect(page.locator("#run-picker-count")).to_have_text("1 of 3 runs")
        expect(page.locator("#run-name")).to_have_text("third.py")
        page.keyboard.press("Escape")
        expect(page.locator("#run-picker")).to_be_hidden()
        expect(page.locator("#run-select")).to_be_focused()
        assert page.evaluate("nanscope.view.run === 'run-c' && nanscope.view.event === null")
        open_picker(page)
        expect(page.locator(".ns-picker-field")).to_have_value("")
        expect(rows(page)).to_have_count(3)
        page.mouse.click(800, 700)
        expect(page.locator("#run-picker")).to_be_hidden()


@BOTH_ENGINES
def test_picker_ticks_the_runs_that_the_table_compares(page: Page, served: Served) -> None:
    for number in range(7):
        served.fill(steps=range(3), run=f"run-{number}", start_time=1_700_000_000.0 + number)
    page.goto(served.server.address)
    until(page, "window.nanscope?.runs?.length === 7")
    open_picker(page)
    page.keyboard.press("Shift+Enter")
    until(page, "nanscope.view.compared.join() === 'run-6'")
    boxes = page.locator("#run-picker-rows input[type=checkbox]")
    expect(boxes.nth(0)).to_be_checked()
    for number in range(1, 5):
        boxes.nth(number).click()
        expect(boxes.nth(number)).to_be_checked()
    expect(boxes.nth(5)).to_be_disabled()
    expect(page.locator("#run-picker")).to_be_visible()
    until(page, "location.search.split('compare=').length === 6")
    boxes.nth(2).click()
    expect(boxes.nth(5)).to_be_enabled()
    page.keyboard.press("Escape")
    page.locator("#tab-runs").click()
    expect(page.locator("#runs-body input:checked")).to_have_count(4)


class TestModelsMadeAgain(OnePage):
    """A run that has made 50 models one after the other, the 9th with a fault."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        served.fill(steps=range(2), run="sweep", name="sweep.py", model="fast")
        served.add_models(49, run="sweep")
        event = page_runs.event(1, run="sweep")
        served.add_event(msgspec.structs.replace(event, member=8))
        served.end_run(run="sweep")
        shared_page.goto(served.server.address)
        until(shared_page, "window.nanscope?.runs?.length === 50")
        return shared_page

    def test_picker_has_one_row_of_them_that_unfolds_and_is_searched(self, page: Page) -> None:
        visit(page, "")
        expect(page.locator("#run-id")).to_have_text("model 50")
        open_picker(page)
        series = page.locator(".ns-picker-row.ns-active")
        expect(series).to_contain_text("sweep.py \u00b7 models 1 to 50")
        expect(series).to_contain_text("1 critical")
        expect(series).to_have_attribute("aria-expanded", "false")
        expect(rows(page)).to_have_count(1)
        expect(page.locator("#run-picker-count")).to_have_text("1 run, 50 models")
        page.keyboard.press("Enter")
        expect(series).to_have_attribute("aria-expanded", "true")
        expect(rows(page).nth(1)).to_contain_text("model 1")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowLeft")
        expect(rows(page)).to_have_count(1)
        page.locator(".ns-picker-field").fill("model 9")
        expect(rows(page)).to_have_count(2)
        page.keyboard.press("Enter")
        until(page, "nanscope.view.run === 'sweep.m8'")
        expect(page.locator("#verdict-text")).not_to_contain_text("No warnings")

    def test_table_keeps_and_deletes_them_in_their_one_row(self, page: Page) -> None:
        visit(page, "tab=runs")
        listed = page.locator("#runs-body [data-run]")
        expect(listed).to_have_count(1)
        expect(listed.locator(".ns-runs-best")).to_have_text("0.0204")
        expect(listed.locator(".ns-runs-remove")).to_be_enabled()
        listed.locator(".ns-runs-open").click()
        expect(listed).to_have_count(51)
        expect(page.locator("#runs-body .ns-runs-remove:visible")).to_have_count(1)
        expect(page.locator("#runs-body .ns-runs-star:visible")).to_have_count(1)
        listed.nth(3).locator(".ns-runs-open").click()
        until(page, "nanscope.view.run === 'sweep.m2' && document.body.dataset.tab === 'overview'")


class TestPickerOfOneRun(OnePage):
    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        served.fill(steps=range(5), name="only.py")
        shared_page.goto(served.server.address)
        until(shared_page, "window.nanscope?.runs?.length === 1")
        return shared_page

    def test_picker_of_one_run_says_so(self, page: Page, served: Served) -> None:
        visit(page, "")
        expect(page.locator("#run-name")).to_have_text("only.py")
        open_picker(page)
        expect(page.locator("#run-picker-count")).to_have_text("1 run")
        expect(rows(page)).to_have_count(1)
        served.fill(steps=range(5, 30), name="only.py")
        expect(rows(page).first).to_contain_text("step 29")

    def test_picker_makes_elements_of_the_rows_in_view_alone(self, page: Page) -> None:
        visit(page, "run=demo-run")
        until(page, "window.nanscope?.runs?.length === 1")
        names = page.evaluate(
            """count => {
              const [known] = window.known = nanscope.runs;
              const older = Array.from({ length: count - 1 }, (_, number) => ({
                ...known, run: `old-${number}`, group: `old-${number}`, name: `sweep ${number}`,
                started: known.started - number - 1,
              }));
              nanscope.emit("runs", [known, ...older]);
              return nanscope.runs.length;
            }""",
            MANY,
        )
        assert names == MANY
        open_picker(page)
        expect(page.locator("#run-picker-count")).to_have_text("2,000 runs")
        assert rows(page).count() < 30
        heights = page.evaluate(
            "[nanscope.byId('run-picker-list').clientHeight, nanscope.byId('run-picker-list').scrollHeight]"
        )
        assert heights[0] < 450 and heights[1] == MANY * 44
        page.evaluate("nanscope.byId('run-picker-list').scrollTop = 44 * 1000")
        expect(page.locator("#run-picker-rows [data-run=old-1000]")).to_be_visible()
        assert rows(page).count() < 30
        page.locator(".ns-picker-field").fill("sweep 1998")
        expect(rows(page)).to_have_count(1)
        page.keyboard.press("Enter")
        until(page, "nanscope.view.run === 'old-1998'")
        page.evaluate("nanscope.emit('runs', window.known)")
