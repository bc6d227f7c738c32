"""Notes at steps in a real Chromium: written by a key, flags and list, changed, deleted, put back."""

from __future__ import annotations

import pytest
from page_fixtures import BOTH_ENGINES, Served, until
from page_visits import OnePage, visit
from playwright.sync_api import Browser, Page, expect

from dashboard.store.protocol import StepNote

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

HOSTILE = "<img src=x onerror='window.hurt=1'> lr\u202e halved"
SHOWN = HOSTILE.replace("\u202e", "[U+202E]")

KEY_IN_FIELD = """document.querySelector("#note-place input")
    .dispatchEvent(new KeyboardEvent("keydown", { key: "m", bubbles: true, cancelable: true }))"""


def open_page(page: Page, served: Served, query: str = "") -> None:
    served.fill(steps=range(200))
    page.goto(served.server.address + query)
    until(page, "window.nanscope?.heatmap?.shown?.length > 0")


def kept(served: Served, run: str = "demo-run") -> list[tuple[int, str]]:
    return [(note.step, note.text) for note in served.server.store.notes(run)]


class TestNotes(OnePage):
    """No run has a note when a test begins that shows it."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        open_page(shared_page, served)
        return shared_page

    def test_key_writes_a_note_at_the_newest_step_or_at_the_crosshair(
        self, page: Page, served: Served
    ) -> None:
        served.fill(run="written", steps=range(200))
        visit(page, "run=written")
        page.keyboard.press("m")
        expect(page.locator("#note-title")).to_have_text("Note at step 199")
        page.keyboard.press("Enter")
        expect(page.locator("#note-said")).to_have_text("Write something first.")
        page.keyboard.type(HOSTILE)
        page.keyboard.press("Enter")
        expect(page.locator("#note-dialog")).to_be_hidden()
        until(page, "nanscope.annotations.length === 1")
        assert kept(served, "written") == [(199, HOSTILE)]
        page.evaluate("nanscope.setCrosshair(40)")
        page.keyboard.press("m")
        expect(page.locator("#note-title")).to_have_text("Note at step 40")
        page.keyboard.type("dropped")
        page.keyboard.press("Escape")
        expect(page.locator("#note-dialog")).to_be_hidden()
        page.evaluate("nanscope.setCrosshair(40)")
        # As when the key comes before the frame that takes the focus from the hidden field.
        page.evaluate(KEY_IN_FIELD)
        page.keyboard.type("warm-up ends")
        page.locator("#note-save").click()
        until(page, "nanscope.annotations.map(({ step }) => step).join() === '40,199'")
        assert kept(served, "written") == [(40, "warm-up ends"), (199, HOSTILE)]
        flags = page.locator(".ns-note-flag")
        expect(flags).to_have_count(2)
        expect(flags.nth(1)).to_have_attribute("title", f"Step 199\n{SHOWN}")
        where = page.evaluate(
            "[...document.querySelectorAll('.ns-note-flag')].map(flag => parseFloat(flag.style.left)"
            " - nanscope.placeOfStep(flag.title.includes('199') ? 199 : 40))"
        )
        assert all(abs(each) < 1 for each in where)
        assert page.evaluate("window.hurt") is None

    def test_notes_are_those_of_the_run_that_is_shown_and_of_other_pages_too(
        self, page: Page, served: Served
    ) -> None:
        served.fill(steps=range(30), run="other", start_time=1.6e9)
        visit(page, "run=demo-run")
        note = StepNote(id="n", step=7, text="from elsewhere", time=1.7e9)
        served.server.store.write_note("demo-run", note)
        served.server.notify()
        until(page, "nanscope.annotations.length === 1")
        page.evaluate("nanscope.chooseRun('other', true)")
        until(page, "nanscope.annotations.length === 0")
        page.evaluate("nanscope.chooseRun('demo-run', true)")
        until(page, "nanscope.annotations.length === 1")
        expect(page.locator(".ns-note-flag")).to_have_count(1)
        page.locator(".ns-note-flag").click()
        expect(page.locator("#note-title")).to_have_text("Change the note at step 7")
        page.locator("#note-delete").click()
        until(page, "nanscope.annotations.length === 0")
        assert kept(served) == []

    def test_note_needs_a_step(self, page: Page, served: Served) -> None:
        served.fill(run="empty", steps=range(0))
        visit(page, "run=empty")
        until(page, "window.nanscope?.view?.run === 'empty'")
        until(page, "nanscope.newestStep === null && !document.querySelector('#no-step').hidden")
        page.keyboard.press("m")
        expect(page.locator("#notes-undo")).to_contain_text("this run has none yet")
        expect(page.locator("#note-dialog")).to_be_hidden()


@BOTH_ENGINES
def test_notes_are_listed_changed_deleted_and_put_back(page: Page, served: Served) -> None:
    open_page(page, served)
    for number, text in enumerate((HOSTILE, "second")):
        note = StepNote(id=f"n{number}", step=20 + 90 * number, text=text, time=1.7e9)
        served.server.store.write_note("demo-run", note)
    served.server.notify()
    page.locator("#tab-events").click()
    lines = page.locator("#notes-list li")
    expect(lines).to_have_count(2)
    expect(page.locator("#notes-count")).to_have_text("2")
    expect(lines.nth(0).locator(".ns-note-text")).to_have_text(SHOWN)
    lines.nth(1).get_by_role("button", name="Edit").click()
    expect(page.locator(".ns-note-dialog .ns-note-field")).to_have_value("second")
    page.keyboard.type("better")
    page.keyboard.press("Enter")
    expect(lines.nth(1).locator(".ns-note-text")).to_have_text("better")
    assert kept(served) == [(20, HOSTILE), (110, "better")]
    lines.nth(0).get_by_role("button", name="Delete").click()
    expect(lines).to_have_count(1)
    assert kept(served) == [(110, "better")]
    page.locator("#notes-undo").get_by_role("button", name="Undo").click()
    expect(lines).to_have_count(2)
    assert kept(served) == [(20, HOSTILE), (110, "better")]
    expect(page.locator("#notes-undo")).to_be_empty()
    lines.nth(1).get_by_role("button", name="Show").click()
    until(page, "document.body.dataset.tab === 'overview' && nanscope.view.first === 60")
    until(page, "nanscope.view.end === 161")


def test_note_that_is_refused_stays_in_its_field_with_the_reason(browser: Browser, served: Served) -> None:
    page = browser.new_page()  # Chromium itself tells the console of the 409
    open_page(page, served)
    for number in range(200):
        served.server.store.write_note(
            "demo-run", StepNote(id=f"n{number}", step=number, text="x", time=1.7e9)
        )
    served.server.notify()
    until(page, "nanscope.annotations.length === 200")
    page.keyboard.press("m")
    page.keyboard.type("one more")
    page.keyboard.press("Enter")
    expect(page.locator("#note-said")).to_contain_text("200 notes")
    expect(page.locator(".ns-note-dialog .ns-note-field")).to_have_value("one more")
    page.close()
