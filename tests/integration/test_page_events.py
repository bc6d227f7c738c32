"""Events in the page, in a real Chromium: marker, row, panel, address, keyboard, download."""

from __future__ import annotations

import json
import time
import urllib.parse

import msgspec
import pytest
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

NAN = page_runs.event(20)
SPIKE = page_runs.event(30, kind="loss_spike", severity="warning", message="Loss spike at step 30")


def open_with_events(page: Page, served: Served, query: str = "") -> None:
    served.fill(steps=range(40), bad={20: "nan"})
    served.add_event(NAN)
    served.add_event(SPIKE)
    page.goto(served.server.address + query)
    until(page, "document.querySelectorAll('#plot-timeline .scatterlayer .point').length >= 2")
    expect(page.locator("#event-table")).to_contain_text("Loss spike")


def shown_event(page: Page) -> str | None:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page.url).query).get("event", [None])[0]


def test_events_click_on_marker_opens_panel_beside_charts(page: Page, served: Served) -> None:
    open_with_events(page, served)
    page.locator("#plot-timeline .scatterlayer .point").first.click(force=True)
    expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
    assert shown_event(page) == NAN.id
    plot = page.locator("#plot-loss").bounding_box()
    aside = page.locator("#event-aside").bounding_box()
    assert plot["x"] + plot["width"] <= aside["x"]
    until(page, "document.querySelector('#plot-loss')._fullLayout.width <= 1440 * 0.68")


def test_events_click_on_row_opens_that_event(page: Page, served: Served) -> None:
    open_with_events(page, served)
    page.locator("#event-table .ag-row", has_text="Loss spike").click()
    expect(page.locator("#event-content")).to_contain_text("Loss spike at step 30")
    assert shown_event(page) == SPIKE.id


def test_events_keys_move_and_escape_closes(page: Page, served: Served) -> None:
    open_with_events(page, served)
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


def test_events_address_restores_run_and_event(page: Page, served: Served) -> None:
    open_with_events(page, served, query=f"&run=demo-run&event={NAN.id}")
    expect(page.locator("#event-content")).to_contain_text("NaN first at step 20")
    assert "token" not in page.url


def test_events_panel_shows_source_of_the_frame(page: Page, served: Served) -> None:
    open_with_events(page, served, query=f"&run=demo-run&event={NAN.id}")
    expect(page.locator("#event-content")).to_contain_text("train.py:26")
    expect(page.locator("#event-content")).to_contain_text("return x / variance.sqrt()")


def test_events_unknown_run_in_address_says_so(page: Page, served: Served) -> None:
    open_with_events(page, served, query="&run=no-such-run")
    expect(page.locator("#notice")).to_contain_text("no-such-run is not here")
    served.end_run()
    served.fill(run="no-such-run", steps=range(5), start_time=time.time())
    until(page, "window.nanscope.view.run === 'no-such-run'")
    expect(page.locator("#notice")).to_be_hidden()


def test_events_export_menu_downloads_json_of_the_run(page: Page, served: Served) -> None:
    open_with_events(page, served)
    page.locator("#export-menu").click()
    with page.expect_download() as download:
        page.locator("#export-json").click()
    document = json.loads(download.value.path().read_text())
    assert NAN.id in [event["id"] for event in document["events"]]


def test_events_download_gives_one_event(page: Page, served: Served) -> None:
    open_with_events(page, served, query=f"&run=demo-run&event={NAN.id}")
    with page.expect_download() as download:
        page.locator("#event-download").click()
    assert json.loads(download.value.path().read_text())["id"] == NAN.id


def test_events_open_panel_is_brought_up_to_date_where_it_stands(page: Page, served: Served) -> None:
    """What was unfolded and scrolled to stays, as others arrive; the next is read from its top."""
    open_with_events(page, served, query=f"&run=demo-run&event={NAN.id}")
    spread = msgspec.structs.replace(NAN, propagated_to=[f"blocks.{number}" for number in range(40)])
    served.add_event(spread)
    content = page.locator("#event-content")
    expect(content).to_contain_text("Spread to 40")
    page.locator("#event-content .event-affected > summary").click()
    page.evaluate("document.getElementById('event-content').scrollTop = 150")
    page.evaluate("document.querySelector('#event-content article').mark = 'the same'")
    served.add_event(page_runs.event(35, kind="loss_plateau", severity="info", message="Another one"))
    expect(page.locator("#event-table")).to_contain_text("Another one")
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
