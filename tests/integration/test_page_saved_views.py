"""Saved views in a real Chromium: named addresses, in the menu and the palette, renamed, deleted, applied."""

from __future__ import annotations

import json

import pytest
from page_fixtures import Served, until
from page_visits import visit
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

HOSTILE = "<img src=x onerror='window.hurt=1'>\u202egpj"
SHOWN = HOSTILE.replace("\u202e", "[U+202E]")


def save(page: Page, name: str, *, with_run: bool = True) -> None:
    page.locator("#page-menu").click()
    page.locator("#save-view").click()
    page.locator(".ns-views-run input").set_checked(with_run)
    page.get_by_label("Name of this view").fill(name)
    page.keyboard.press("Enter")
    expect(page.locator("#views-said")).to_contain_text("Saved")
    page.keyboard.press("Escape")
    expect(page.locator("#views-dialog")).to_be_hidden()


def stored(page: Page) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(page.evaluate("localStorage.getItem('nanscope-views') || '[]'"))
    return found


class TestSavedViews:
    """One page of two runs, without a saved view when a test begins."""

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, shared_page: Page, shared_served: Served) -> Page:
        shared_served.fill(steps=range(60), run="run-a", start_time=1_700_000_000.0)
        shared_served.fill(steps=range(20), run="run-b", start_time=1_700_000_900.0)
        shared_page.goto(shared_served.server.address)
        until(shared_page, "window.nanscope?.runs?.length === 2 && nanscope.newestStep !== null")
        return shared_page

    @pytest.fixture
    def page(self, opened: Page) -> Page:
        opened.evaluate(
            "localStorage.removeItem('nanscope-views');"
            "dispatchEvent(new StorageEvent('storage', { key: 'nanscope-views' }))"
        )
        assert opened.evaluate("nanscope.savedViews().length") == 0
        return opened

    def test_view_is_saved_and_opened_from_the_menu_after_a_reload(self, page: Page) -> None:
        visit(page, "run=run-a&tab=events&mute=loss_spike")
        save(page, HOSTILE)
        page.locator("#tab-overview").click()
        page.evaluate("nanscope.chooseRun('run-b', true)")
        page.reload()
        until(page, "window.nanscope?.view?.run === 'run-b' && nanscope.newestStep === 19")
        page.locator("#page-menu").click()
        item = page.locator("#menu-views [role=menuitem]")
        expect(item).to_have_text(SHOWN)
        item.click()
        until(page, "nanscope.view.run === 'run-a' && document.body.dataset.tab === 'events'")
        assert page.evaluate("nanscope.view.muted.join()") == "loss_spike"
        assert page.evaluate("window.hurt") is None
        page.go_back()
        until(page, "nanscope.view.run === 'run-b' && document.body.dataset.tab === 'overview'")

    def test_view_is_found_in_the_palette(self, page: Page) -> None:
        visit(page, "run=run-a&tab=runs")
        save(page, "evening sweep")
        page.locator("#tab-overview").click()
        page.keyboard.press("Control+k")
        page.keyboard.type("evesw")
        expect(page.locator("#palette-list [aria-selected=true]")).to_contain_text("evening sweep")
        page.keyboard.press("Enter")
        until(page, "document.body.dataset.tab === 'runs'")

    @pytest.mark.parametrize("with_run", [True, False])
    def test_view_without_its_run_applies_to_the_run_that_is_shown(
        self, page: Page, shared_served: Served, with_run: bool
    ) -> None:
        visit(page, "run=run-a&tab=layers&filter=norm&steps=30-50&event=gone")
        save(page, "norms", with_run=with_run)
        if with_run:  # it was deleted since
            page.evaluate(
                "localStorage.setItem('nanscope-views',"
                " localStorage.getItem('nanscope-views').replace('run-a', 'was'))"
            )
        page.goto(shared_served.server.address + "&run=run-b")
        until(page, "window.nanscope?.view?.run === 'run-b' && nanscope.newestStep === 19")
        page.locator("#page-menu").click()
        page.locator("#menu-views [role=menuitem]").click()
        until(page, "document.body.dataset.tab === 'layers' && nanscope.view.filter === 'norm'")
        # Its event is none of this run, and its steps lie beyond the newest one.
        assert page.evaluate("[nanscope.view.run, nanscope.view.event, nanscope.view.first]") == [
            "run-b",
            None,
            None,
        ]
        expect(page.locator("#notice")).to_be_hidden()

    def test_view_is_renamed_deleted_and_put_back(self, page: Page) -> None:
        visit(page, "run=run-b")
        for name in ("first", "second"):
            save(page, name)
        page.locator("#page-menu").click()
        page.locator("#save-view").click()
        lines = page.locator("#views-list li")
        expect(lines).to_have_count(2)
        lines.nth(1).get_by_role("button", name="Rename").click()
        page.keyboard.type("second")
        page.keyboard.press("Enter")
        expect(page.locator("#views-said")).to_have_text("Another view already has that name.")
        lines.nth(1).get_by_role("button", name="Rename").click()
        page.keyboard.type(HOSTILE)
        page.keyboard.press("Enter")
        expect(lines.nth(1).locator(".ns-note-text")).to_have_text(SHOWN)
        assert [each["name"] for each in stored(page)] == ["second", HOSTILE]
        lines.nth(0).get_by_role("button", name="Delete").click()
        assert [each["name"] for each in stored(page)] == [HOSTILE]
        page.get_by_role("button", name="Put second back").click()
        assert [each["name"] for each in stored(page)] == ["second", HOSTILE]
        assert page.evaluate("window.hurt") is None

    def test_no_more_than_fifty_views_are_kept_and_what_is_stored_may_be_anything(self, page: Page) -> None:
        visit(page, "run=run-b")
        views = [{"name": f"view {number}", "query": "tab=runs"} for number in range(50)]
        for bad in ("nonsense", "{}", '[1, null, {"name": 3, "query": "x"}, {"name": "", "query": ""}]'):
            page.evaluate("text => localStorage.setItem('nanscope-views', text)", bad)
            page.reload()
            until(page, "window.nanscope?.savedViews !== undefined && nanscope.newestStep !== null")
            assert page.evaluate("nanscope.savedViews().length") == 0
        page.evaluate("text => localStorage.setItem('nanscope-views', text)", json.dumps(views))
        page.locator("#page-menu").click()
        page.locator("#save-view").click()
        expect(page.locator("#views-list li")).to_have_count(50)
        page.get_by_label("Name of this view").fill("one more")
        page.locator("#views-save").click()
        expect(page.locator("#views-said")).to_contain_text("At most 50")
        page.get_by_label("Name of this view").fill("view 7")
        page.locator("#views-save").click()
        expect(page.locator("#views-said")).to_contain_text("Replaced")
        assert len(stored(page)) == 50
