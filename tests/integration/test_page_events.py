"""Events in the page, in a real Chromium: marker, row, panel, address, keyboard, download."""

from __future__ import annotations

import json
import urllib.parse

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
