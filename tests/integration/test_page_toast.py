"""The toast for new critical events, in a real Chromium."""

from __future__ import annotations

import pytest
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser


def test_toast_names_new_critical_events_alone_and_opens_the_first(page: Page, served: Served) -> None:
    served.fill(steps=range(40))
    served.add_event(page_runs.event(5, message="An old one"))
    page.goto(served.server.address)
    until(page, "window.nanscope?.rowsInOrder?.()?.length === 1")
    served.add_event(page_runs.event(9, kind="loss_spike", severity="warning", message="A warning"))
    until(page, "nanscope.rowsInOrder()?.length === 2")
    page.wait_for_timeout(300)
    expect(page.locator("#toast")).to_be_hidden()
    new = [
        page_runs.event(step, subject=f"layer{step}", message=f"NaN\u202e at {step}") for step in (20, 21, 22)
    ]
    served.add_events(new)
    expect(page.locator("#toast")).to_be_visible()
    expect(page.locator("#toast-text")).to_have_text("NaN[U+202E] at 20")
    expect(page.locator("#toast-more")).to_contain_text("and 2 more")
    page.locator("#toast-open").click()
    expect(page.locator("#toast")).to_be_hidden()
    until(page, "id => nanscope.view.event === id", new[0].id)
