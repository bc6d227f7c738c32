"""Who may only look, and who logs out, in a real Chromium."""

from __future__ import annotations

import pytest
from page_fixtures import PATIENCE_MS, Served, forget, until
from playwright.sync_api import BrowserContext, Page, expect

from dashboard.store.protocol import StepNote

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
SHOWN = "window.nanscope?.heatmap?.shown?.length > 0"


def test_viewer_s_page_shows_all_and_has_nothing_to_change_it_with(page: Page, served: Served) -> None:
    served.fill(steps=range(60))
    served.server.store.write_note("demo-run", StepNote(id="n1", step=20, text="mine", time=1.0))
    page.goto(served.server.view_address)
    until(page, SHOWN)
    assert "token" not in page.url
    expect(page.locator(".ns-view-only")).to_be_visible()
    until(page, "nanscope.annotations.length === 1")
    page.keyboard.press("m")
    expect(page.locator("#notes-undo")).to_contain_text("This address may only look.")
    expect(page.locator("#note-dialog")).to_be_hidden()
    page.evaluate("nanscope.editNote('n1')")
    expect(page.locator("#note-dialog")).to_be_hidden()
    for hidden in ("#watchpoint-add", "#profile-ask", "#row-watch"):
        assert page.evaluate("(at) => document.querySelector(at).getClientRects().length", hidden) == 0
    page.evaluate("nanscope.chooseTab('runs')")
    row = page.locator("tr[data-run='demo-run']")
    for part in (".ns-runs-star", ".ns-runs-edit", ".ns-runs-remove"):
        expect(row.locator(part)).to_be_disabled()


def test_page_of_who_may_change_things_has_them_and_logs_out_for_good(
    window: BrowserContext, served: Served
) -> None:
    """Without the watch over a page's console: refusals, which are what this is about, stand there."""
    page = window.new_page()
    page.set_default_timeout(PATIENCE_MS)
    served.fill(steps=range(60))
    page.goto(served.server.address)
    until(page, SHOWN)
    expect(page.locator(".ns-view-only")).to_be_hidden()
    (before,) = page.context.cookies()
    page.locator("#page-menu").click()
    page.locator("#log-out").click()
    expect(page.locator("body")).to_contain_text("This page needs its token")
    assert page.context.cookies() == []
    page.context.add_cookies([before])
    page.reload()
    expect(page.locator("body")).to_contain_text("This page needs its token")
    forget(window, served.server.page)
