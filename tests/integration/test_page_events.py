"""Events in the page, in a real Chromium: marker, row, panel, address, keyboard, download."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Iterator

import msgspec
import pytest
from page_fixtures import BOTH_ENGINES, Served, page_runs, until
from page_visits import RunsOfTheirOwn, visit
from playwright.sync_api import Page, Response, expect

from probe.wire import Event

pytestmark = pytest.mark.browser


def nan_of(run: str) -> Event:
    return page_runs.event(20, run=run)


def spike_of(run: str) -> Event:
    message = "Loss spike at step 30"
    return page_runs.event(30, run=run, kind="loss_spike", severity="warning", message=message)


NAN, SPIKE = nan_of("demo-run"), spike_of("demo-run")


def fill_with_events(served: Served, run: str) -> None:
    served.fill(run=run, steps=range(40), bad={20: "nan"})
    served.add_event(nan_of(run))
    served.add_event(spike_of(run))


def wait_for_events(page: Page) -> None:
    expect(page.locator("#timeline-markers .ns-marker")).to_have_count(2)
    until(page, "nanscope.rowsInOrder()?.some(row => row.message.includes('Loss spike'))")


def open_with_events(page: Page, served: Served, query: str = "") -> None:
    fill_with_events(served, "demo-run")
    page.goto(served.server.address + query)
    wait_for_events(page)


def visit_with_events(page: Page, served: Served, run: str, *, is_open: bool = False) -> None:
    """Have an open page show a run with two events, and the panel of the first one where that is wished."""
    fill_with_events(served, run)
    visit(page, f"run={run}" + (f"&event={nan_of(run).id}" if is_open else ""))
    wait_for_events(page)
    if is_open:
        until(page, "id => nanscope.panelShown()?.dataset.event === id", nan_of(run).id)


def open_table(page: Page, *texts: str) -> None:
    """Go to the list of events, and wait for what it has to have."""
    page.locator("#tab-events").click()
    for text in texts or ("Loss spike",):
        expect(page.locator("#event-table")).to_contain_text(text)


def shown_event(page: Page) -> str | None:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page.url).query).get("event", [None])[0]


@BOTH_ENGINES
class TestPageWithEvents:
    """One page, where no event is open when a test begins."""

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, shared_page: Page, shared_served: Served) -> Page:
        open_with_events(shared_page, shared_served)
        return shared_page

    @pytest.fixture
    def page(self, opened: Page) -> Page:
        opened.evaluate("nanscope.closeEvent()")
        expect(opened.locator("#event-aside")).to_be_hidden()
        assert shown_event(opened) is None
        return opened

    @pytest.mark.capability(4, 73)
    def test_events_click_on_marker_opens_panel_beside_charts(self, page: Page) -> None:
        page.locator("#timeline-markers .ns-marker[data-severity=critical]").click()
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
        expect(page.locator("#event-content .event-advice")).to_have_text("Add an epsilon to the variance.")
        assert shown_event(page) == NAN.id
        plot = page.locator("#plot-loss").bounding_box()
        aside = page.locator("#event-aside").bounding_box()
        assert plot["x"] + plot["width"] <= aside["x"]
        until(page, "nanscope.painted('loss').box.w <= 1440 * 0.68")

    def test_events_click_on_row_opens_that_event(self, page: Page) -> None:
        open_table(page)
        page.locator("#event-table .ns-event-row", has_text="Loss spike").click()
        expect(page.locator("#event-content")).to_contain_text("Loss spike at step 30")
        assert shown_event(page) == SPIKE.id
        page.locator("#tab-overview").click()

    def test_events_strip_counts_them_and_a_click_goes_to_the_row(self, page: Page) -> None:
        open_table(page)
        strip = page.locator("#event-density")
        expect(strip).to_have_attribute(
            "aria-label", re.compile("over steps 0 to 39. Most of them: Step 20: 1 crit")
        )
        bar = strip.bounding_box()["width"] / 40
        strip.hover(position={"x": 30.5 * bar, "y": 12})
        expect(strip).to_have_attribute("title", "Step 30: 1 warning")
        strip.click(position={"x": 30.5 * bar, "y": 12})
        focused = page.evaluate("document.activeElement.closest('.ns-event-row')?.dataset.event")
        assert focused in page.evaluate(
            "nanscope.eventRows().filter(row => row.step === 30).map(row => row.id)"
        )
        page.locator("#events-severities [data-severity=warning]").click()
        strip.hover(position={"x": 30.5 * bar, "y": 8})
        expect(strip).to_have_attribute("title", "Step 30: no event")
        page.locator("#events-severities [data-severity=warning]").click()
        page.locator("#tab-overview").click()

    def test_events_keys_move_and_escape_closes(self, page: Page) -> None:
        page.keyboard.press("n")
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
        page.keyboard.press("n")
        expect(page.locator("#event-content")).to_contain_text("Loss spike at step 30")
        page.keyboard.press("p")
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
        page.keyboard.press("?")
        expect(page.locator("#key-sheet")).to_contain_text("previous event")
        page.keyboard.press("Escape")
        expect(page.locator("#key-sheet")).to_be_hidden()
        expect(page.locator("#event-aside")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#event-aside")).to_be_hidden()
        assert shown_event(page) is None

    def test_events_export_menu_downloads_json_of_the_run(self, page: Page) -> None:
        page.locator("#page-menu").click()
        with page.expect_download() as download:
            page.locator("#export-json").click()
        document = json.loads(download.value.path().read_text())
        assert NAN.id in [event["id"] for event in document["events"]]


class TestPageOfAnEvent:
    """One page that was opened with an event in its address, and nothing else."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, shared_served: Served) -> Page:
        open_with_events(shared_page, shared_served, query=f"&event={NAN.id}")
        return shared_page

    def test_events_address_restores_the_event_and_names_its_run(self, page: Page) -> None:
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
        assert shown_event(page) == NAN.id
        assert "run=demo-run" in page.url
        assert "token" not in page.url

    def test_events_panel_shows_source_of_the_frame(self, page: Page) -> None:
        expect(page.locator("#event-content")).to_contain_text("train.py:26")
        expect(page.locator("#event-content")).to_contain_text("return x / variance.sqrt()")

    def test_events_download_gives_one_event(self, page: Page) -> None:
        with page.expect_download() as download:
            page.locator("#event-download").click()
        assert json.loads(download.value.path().read_text())["id"] == NAN.id

    def test_long_verdict_is_never_cut_in_module_and_line(self, page: Page, shared_served: Served) -> None:
        module = "transformer.encoder.layers.11.self_attn.out_proj"
        message = f"NaN first at step 3 in {module}, train_transformer.py:126, forward (scaled_dot_product)"
        origin = msgspec.structs.replace(NAN.origin, module=module)
        shared_served.add_event(
            msgspec.structs.replace(page_runs.event(3, subject=module, message=message), origin=origin)
        )
        expect(page.locator("#verdict-text")).to_have_text(message)
        expect(page.locator("#verdict-text")).to_have_attribute("title", message)
        copy = page.locator("#verdict-source button")
        for width, is_whole in ((1440, True), (1024, True), (700, False)):
            page.set_viewport_size({"width": width, "height": 900})
            names = page.locator("#verdict-text code").evaluate_all(
                "(all) => { const end = all[0].closest('button').getBoundingClientRect().right;"
                " return all.map((code) => [code.textContent,"
                " code.scrollWidth <= code.clientWidth && code.getBoundingClientRect().right <= end]); }"
            )
            # Where there is no room for all, the beginning of the module's name goes: the line never does.
            assert names == [[module, is_whole], ["train_transformer.py:126", True]]
            if width > 900:
                expect(copy).to_have_text("Copy path:line")
                left, right = page.locator("#verdict-text").bounding_box(), copy.bounding_box()
                assert left["x"] + left["width"] <= right["x"]
                assert right["width"] < 60 if width < 1200 else right["width"] > 80
        page.set_viewport_size({"width": 1440, "height": 900})


def test_events_unknown_run_in_address_says_so(page: Page, served: Served) -> None:
    open_with_events(page, served, query="&run=no-such-run")
    expect(page.locator("#notice")).to_contain_text("no-such-run is not here")
    served.end_run()
    served.fill(run="no-such-run", steps=range(5), start_time=time.time())
    until(page, "window.nanscope.view.run === 'no-such-run'")
    expect(page.locator("#notice")).to_be_hidden()


def test_events_copy_button_copies_with_and_without_a_clipboard(page: Page, served: Served) -> None:
    """Over plain http from another machine a page has no clipboard to write to."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    open_with_events(page, served, query=f"&run=demo-run&event={NAN.id}")
    stack = page.locator("#event-content .event-stack .event-copy").first
    report = page.locator("#event-content .event-actions [data-text]")
    stack.click()
    expect(stack).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == stack.get_attribute("data-text")
    expect(stack).to_have_text("Copy")
    page.evaluate("window.clipboard = navigator.clipboard")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    report.click()
    expect(report).to_have_text("Copied")
    assert page.evaluate("window.clipboard.readText()") == report.get_attribute("data-text")


def rows_answers(page: Page) -> list[dict[str, object]]:
    """Note every answer with rows that the page gets from now on."""
    found: list[dict[str, object]] = []

    def note(response: Response) -> None:
        if '"output":"event-rows.data"' in (response.request.post_data or ""):
            found.append(response.json()["response"]["event-rows"]["data"])

    page.on("response", note)
    return found


def test_events_many_come_in_parts_and_a_change_alone(page: Page, served: Served) -> None:
    """No event is out of reach, in the table or by keys, and a change does not bring all of them again."""
    served.fill(steps=range(40))
    many = [page_runs.event(step, severity="warning", message=f"Number {step}.") for step in range(3, 653)]
    served.add_events(many)
    answers = rows_answers(page)
    page.goto(served.server.address)
    until(page, "(window.nanscope?.rowsInOrder?.() ?? []).length === 650")
    while len(answers) < 2:  # the page may have an answer before we have noted it
        page.wait_for_timeout(50)
    assert [len(answer["rows"]) for answer in answers] == [200, 450]
    assert [row["step"] for row in answers[0]["rows"]] == list(range(453, 653))
    page.locator("#tab-events").click()
    table = page.locator("#event-table")
    expect(table.locator(".ns-event-row").first).to_contain_text("Number 3.")
    expect(page.locator("#events-count")).to_have_text("650 events")
    assert table.locator(".ns-event-row").count() < 60
    answers.clear()
    served.add_event(msgspec.structs.replace(many[0], count=9, last_step=30))
    until(page, "window.nanscope.rowsInOrder()[0].count === 9")
    while not answers:
        page.wait_for_timeout(50)
    assert [[row["step"] for row in answer["rows"]] for answer in answers] == [[3]]
    page.keyboard.press("n")
    expect(page.locator("#event-content")).to_contain_text("Number 3.")
    expect(page.locator("#event-position")).to_have_text("1 of 650")
    table.get_by_role("button", name="Step").click()
    expect(table.locator(".ns-event-row").first).to_contain_text("Number 652.")
    assert "order=newest" in page.url
    table.locator(".ns-event-row").first.focus()
    page.keyboard.press("End")
    expect(table.locator(".ns-event-row").last).to_contain_text("Number 3.")
    page.keyboard.press("Enter")
    expect(page.locator("#event-content")).to_contain_text("Number 3.")


def test_events_of_another_run_or_server_replace_the_rows(page: Page, served: Served) -> None:
    """Rows are kept in the page; those of the run before, or of numbers that no longer count, are not."""
    served.fill(run="quiet-run", steps=range(10), start_time=1_600_000_000.0)
    open_with_events(page, served, query="&run=demo-run")
    open_table(page)
    rows = page.locator("#event-table .ns-event-row")
    expect(rows).to_have_count(2)
    page.evaluate("window.nanscope.chooseRun('quiet-run', true)")
    expect(page.locator("#event-table")).to_contain_text("No events")
    page.evaluate("window.nanscope.chooseRun('demo-run', true)")
    expect(rows).to_have_count(2)
    served.restart()
    served.add_event(page_runs.event(35, kind="gradient_spike", message="After the restart"))
    expect(page.locator("#event-table")).to_contain_text("After the restart")
    expect(rows).to_have_count(3)


def followed_in(run: str) -> list[Event]:
    """What follows from its NaN."""
    gradients = {"kind": "nonfinite_gradient", "subject": "embed", "message": "NaN in 9 gradients"}
    parameters = {"kind": "nonfinite_parameter", "subject": "embed.weight", "message": "NaN in 9 parameters"}
    return [page_runs.event(20, run=run, **gradients), page_runs.event(21, run=run, **parameters)]


class TestPageOfManyRuns(RunsOfTheirOwn):
    """One page, on which each test visits a run of its own with two events."""

    @pytest.fixture(autouse=True)
    def at_desk(self, page: Page) -> Iterator[None]:
        yield
        page.set_viewport_size({"width": 1440, "height": 900})

    def test_events_open_panel_is_brought_up_to_date_where_it_stands(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        """What was unfolded and scrolled to stays, as others arrive; the next is read from its top."""
        visit_with_events(page, served, own_run, is_open=True)
        spread = msgspec.structs.replace(
            nan_of(own_run), propagated_to=[f"blocks.{number}" for number in range(40)]
        )
        served.add_event(spread)
        content = page.locator("#event-content")
        expect(content).to_contain_text("Spread to 40")
        page.locator("#event-content .event-affected > summary").click()
        page.evaluate("document.getElementById('event-content').scrollTop = 150")
        page.evaluate("document.querySelector('#event-content article').mark = 'the same'")
        served.add_event(
            page_runs.event(35, run=own_run, kind="loss_plateau", severity="info", message="Another one")
        )
        until(page, "nanscope.rowsInOrder().some(row => row.message === 'Another one')")
        page.wait_for_timeout(300)
        assert page.evaluate("document.querySelector('#event-content article').mark") == "the same"
        served.add_event(msgspec.structs.replace(spread, count=16, last_step=35, ended=True))
        expect(content).to_contain_text("16 times, last at step 35, ended")
        assert page.evaluate("document.querySelector('#event-content .event-affected').open")
        assert page.evaluate("document.activeElement.parentElement.className") == "event-affected"
        assert page.evaluate("document.getElementById('event-content').scrollTop") == 150
        page.keyboard.press("n")
        expect(content).to_contain_text("Loss spike at step 30")
        until(page, "document.getElementById('event-content').scrollTop === 0")

    def test_events_of_one_step_stand_severest_first_whenever_they_came(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        visit_with_events(page, served, own_run)
        served.add_event(page_runs.event(30, run=own_run, kind="gradient_spike", message="Worse at step 30"))
        open_table(page, "Worse")
        rows = page.locator("#event-table .ns-event-row")
        expect(rows).to_have_count(3)
        expect(rows.nth(1)).to_contain_text("Worse at step 30")
        expect(rows.nth(2)).to_contain_text("Loss spike at step 30")

    def test_event_about_the_probe_alone_is_listed_last_once_it_is_asked_for(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        visit_with_events(page, served, own_run)
        said = "Measured less often"
        event = page_runs.event(40, run=own_run, kind="throttled", severity="info", message=said)
        served.add_event(msgspec.structs.replace(event, propagated_to=[]))
        open_table(page)
        rows = page.locator("#event-table .ns-event-row")
        chip = page.locator("#events-kinds button", has_text="throttled")
        expect(chip).to_have_attribute("aria-pressed", "false")
        expect(rows).to_have_count(2)
        chip.click()
        expect(chip).to_have_attribute("aria-pressed", "true")
        expect(rows).to_have_count(3)
        expect(rows.nth(2)).to_contain_text("Measured less often")
        page.locator("#event-table").get_by_role("button", name="Step").click()
        expect(rows.nth(0)).to_contain_text("Loss spike")
        expect(rows.nth(2)).to_contain_text("Measured less often")

    def test_events_redrawn_panel_keeps_the_focus_only_while_it_is_there(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        """A second click on what has the focus is told by no event of its own."""
        visit_with_events(page, served, own_run, is_open=True)
        spread = msgspec.structs.replace(
            nan_of(own_run), propagated_to=[f"blocks.{number}" for number in range(9)]
        )
        served.add_event(spread)
        summary = page.locator("#event-content .event-affected > summary")
        summary.click()
        summary.click()
        served.add_event(msgspec.structs.replace(spread, count=2, last_step=21))
        expect(page.locator("#event-content")).to_contain_text("2 times, last at step 21")
        assert page.evaluate("document.activeElement.parentElement.className") == "event-affected"
        page.locator(".ns-header .ns-brand").click()
        served.add_event(msgspec.structs.replace(spread, count=3, last_step=22))
        expect(page.locator("#event-content")).to_contain_text("3 times, last at step 22")
        assert page.evaluate("document.activeElement.tagName") == "BODY"

    def test_events_fold_of_the_head_stays_open_when_the_headline_changes(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        long = "\n".join(["In 1 layer at step 20", *(f"Sentence {number}." for number in range(20))])
        event = msgspec.structs.replace(nan_of(own_run), message=long)
        visit_with_events(page, served, own_run, is_open=True)
        served.add_event(event)
        page.locator("#event-content .event-more > summary").click()
        served.add_event(msgspec.structs.replace(event, message=long.replace("1 layer", "2 layers")))
        expect(page.locator("#event-headline")).to_have_text("In 2 layers at step 20")
        assert page.evaluate("document.querySelector('#event-content .event-more').open")

    @pytest.mark.parametrize("width", [1440, 1024])
    def test_page_values_are_whole_beside_the_event_panel(
        self, page: Page, served: Served, own_run: str, width: int
    ) -> None:
        page.set_viewport_size({"width": width, "height": 900})
        visit_with_events(page, served, own_run, is_open=True)
        expect(page.locator("#gutter-loss .ns-tile-value")).not_to_be_empty()
        cut = (
            "[...document.querySelectorAll('.ns-tile-line')]"
            ".filter(e => e.scrollWidth > e.clientWidth).length"
        )
        assert page.evaluate(cut) == 0
        page.locator("#tab-system").click()
        expect(page.locator("#tile-probe")).to_contain_text("1.1")
        assert page.evaluate(cut) == 0

    def test_page_stays_with_the_newest_choice_when_dash_tells_of_an_older_one_late(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        """Dash calls back with what a script gave a select, too; on a busy machine after the next choice."""
        visit_with_events(page, served, own_run)
        page.evaluate("nanscope.change({ rank: 1 }), nanscope.change({ rank: 0 })")
        page.evaluate("dash_clientside.nanscope.chooseRank('1')")
        page.evaluate("nanscope.openRow('encoder'), nanscope.closeRow()")
        page.evaluate("dash_clientside.nanscope.chooseRow('encoder')")
        assert page.evaluate("[nanscope.view.rank, nanscope.view.row]") == [0, None]

    def test_event_that_was_open_before_stays_closed_when_the_table_tells_of_its_row_late(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        """The table calls back with the row of the open event, which a script has selected, too."""
        visit_with_events(page, served, own_run)
        for _ in range(5):
            page.evaluate("nanscope.moveEvent(1), setTimeout(() => nanscope.moveEvent(1), 30)")
            until(page, f"nanscope.view.event === '{spike_of(own_run).id}'")
            page.wait_for_timeout(400)
            assert shown_event(page) == spike_of(own_run).id
            page.evaluate("nanscope.closeEvent()")
        open_table(page)
        page.locator("#event-table .ns-event-row", has_text="NaN first").click()
        expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")

    def test_events_of_one_fault_are_one_row_until_it_is_opened(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        visit_with_events(page, served, own_run)
        served.add_events(followed_in(own_run))
        open_table(page)
        rows = page.locator("#event-table .ns-event-row")
        expect(rows.nth(0)).to_contain_text("2 more")
        expect(rows).to_have_count(2)
        rows.nth(0).locator("button").click()
        expect(rows).to_have_count(4)
        expect(rows.nth(1)).to_contain_text("NaN in 9 gradients")
        expect(page.locator("#event-aside")).to_be_hidden()
        rows.nth(0).focus()
        page.keyboard.press("ArrowLeft")
        expect(rows).to_have_count(2)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator("#event-content")).to_contain_text("NaN in 9 parameters")

    def test_events_search_and_chips_leave_out_what_nobody_wants(
        self, page: Page, served: Served, own_run: str
    ) -> None:
        visit_with_events(page, served, own_run)
        served.add_events(followed_in(own_run))
        open_table(page)
        rows = page.locator("#event-table .ns-event-row")
        page.get_by_label("Search events").fill("gradients 20")
        expect(rows).to_have_count(1)
        expect(page.locator("#events-count")).to_have_text("1 of 4 events")
        page.get_by_label("Search events").fill("nothing like it")
        expect(page.locator("#event-table")).to_contain_text("No event matches")
        page.get_by_label("Search events").fill("")
        page.locator("#events-kinds button", has_text="loss spike").click()
        expect(rows).to_have_count(1)
        assert "mute=loss+spike" in page.url
        page.reload()
        expect(page.locator("#events-count")).to_have_text("3 of 4 events")
        page.locator("#events-severities button", has_text="critical").click()
        expect(page.locator("#event-table")).to_contain_text("No event matches")
        page.locator("#events-severities button", has_text="critical").click()
        page.locator("#events-kinds button", has_text="loss spike").click()
        expect(rows).to_have_count(2)
        until(page, "!location.search.includes('mute')")
