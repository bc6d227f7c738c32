"""The toast for new critical events, in a real Chromium."""

from __future__ import annotations

import pytest
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Browser, Page, expect

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


def add_new(page: Page, served: Served, step: int) -> str:
    """Add a critical event, and return its id once the page has it: with a paused clock it needs a push."""
    new = page_runs.event(step, subject=f"layer{step}", message=f"NaN at {step}")
    known = page.evaluate("nanscope.rowsInOrder()?.length ?? 0")
    served.add_event(new)
    for _ in range(400):
        page.clock.run_for(5)
        if page.evaluate("known => nanscope.rowsInOrder()?.length === known + 1", known):
            break
        page.wait_for_timeout(25)
    else:
        raise AssertionError("the page did not hear of the event")
    return str(new.id)


def test_second_toast_waits_until_five_seconds_after_the_first(browser: Browser, served: Served) -> None:
    page = browser.new_page()  # a clock holds for all pages of a window
    served.fill(steps=range(40))
    page.clock.install()
    page.goto(served.server.address)
    until(page, "window.nanscope?.rowsInOrder?.()?.length === 0")
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)
    add_new(page, served, 20)
    page.clock.run_for(10)
    expect(page.locator("#toast-text")).to_have_text("NaN at 20")
    shown_at = page.evaluate("performance.now()")
    page.locator("#toast-close").click()
    add_new(page, served, 21)
    add_new(page, served, 22)
    page.clock.run_for(int(4900 - (page.evaluate("performance.now()") - shown_at)))
    expect(page.locator("#toast")).to_be_hidden()
    page.clock.run_for(250)
    expect(page.locator("#toast")).to_be_visible()
    expect(page.locator("#toast-text")).to_have_text("NaN at 21")
    expect(page.locator("#toast-more")).to_contain_text("and 1 more")
    page.close()


NOTIFICATIONS = """
window.asked = 0; window.notes = [];
window.Notification = class {
  static permission = "default";
  static requestPermission() {
    window.asked += 1;
    this.permission = window.answer;
    return Promise.resolve(this.permission);
  }
  constructor(title, options) { this.title = title; this.options = options; window.notes.push(this); }
  close() {}
};
window.answer = "granted";
"""


def hide(page: Page, is_hidden: bool) -> None:
    page.evaluate(
        "isHidden => { Object.defineProperty(document, 'hidden', { value: isHidden, configurable: true });"
        "document.dispatchEvent(new Event('visibilitychange')); }",
        is_hidden,
    )


def switch(page: Page) -> None:
    page.locator("#page-menu").click()
    page.locator("#notify").click()


def test_hidden_page_notifies_of_critical_events_once_somebody_has_switched_it_on(
    page: Page, served: Served
) -> None:
    page.add_init_script(NOTIFICATIONS)
    served.fill(steps=range(40))
    page.goto(served.server.address)
    until(page, "window.nanscope?.rowsInOrder?.()?.length === 0")
    assert page.evaluate("window.asked") == 0
    switch(page)
    until(page, "window.asked === 1 && nanscope.notifies()")
    expect(page.locator("#notify")).to_have_attribute("aria-checked", "true")
    served.add_event(page_runs.event(5, message="While it is seen"))
    expect(page.locator("#toast")).to_be_visible()
    assert page.evaluate("window.notes.length") == 0
    page.locator("#toast-close").click()
    hide(page, True)
    new = [page_runs.event(step, subject=f"s{step}", message=f"NaN\u202e at {step}") for step in (20, 21)]
    served.add_events(new)
    until(page, "window.notes.length === 1")
    title, body = page.evaluate("[window.notes[0].title, window.notes[0].options.body]")
    assert title == "NaN[U+202E] at 20" and "train.py" in body and "1 more" in body
    worse = page_runs.event(20, subject="s20", message="NaN\u202e at 20, again")
    served.add_event(worse)
    hide(page, False)
    page.evaluate("window.notes[0].onclick()")
    until(page, "id => nanscope.view.event === id", new[0].id)
    assert page.evaluate("window.notes.length") == 1
    page.reload()
    until(page, "window.nanscope?.rowsInOrder?.()?.length === 3")
    assert page.evaluate("window.asked") == 0  # a reload asks for nothing


def test_notifications_stay_off_where_the_browser_does_not_allow_them(page: Page, served: Served) -> None:
    page.add_init_script(NOTIFICATIONS + "window.answer = 'denied';")
    served.fill(steps=range(40))
    page.goto(served.server.address)
    until(page, "window.nanscope?.rowsInOrder?.()?.length === 0")
    switch(page)
    expect(page.locator("#notes-undo")).to_contain_text("blocks notifications")
    expect(page.locator("#notify")).to_have_attribute("aria-checked", "false")
    hide(page, True)
    served.add_event(page_runs.event(20, message="NaN at 20"))
    page.wait_for_timeout(600)
    assert page.evaluate("window.notes.length") == 0
    hide(page, False)
