"""A run whose every text is hostile, in every view of the page and in its exports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_fixtures import Served, until
from playwright.sync_api import Browser, Page, expect

from dashboard.page.tabs import TABS

import hostile_run  # isort: skip

pytestmark = pytest.mark.browser

FEW = (0, 6, 8, 9, 11, 12, 16)
"""Numbers of the corpus: of each kind of text one."""
_SEEN = """signs => {
  const hidden = new RegExp(`[${signs}]`);
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) {
      if (node.parentElement.closest('script, style, footer')) continue;
      const text = node.parentElement.closest('pre') ? node.data.replaceAll('\\t', '') : node.data;
      if (hidden.test(text)) found.push([node.parentElement.outerHTML.slice(0, 90), text.slice(0, 60)]);
      continue;
    }
    for (const name of ['title', 'aria-label', 'placeholder', 'alt'])
      if (hidden.test(node.getAttribute(name) || '')) found.push([node.outerHTML.slice(0, 90), name]);
    if (node.tagName === 'INPUT' && node.type !== 'hidden' && hidden.test(node.value))
      found.push([node.id, node.value.slice(0, 60)]);
  }
  if (hidden.test(document.title)) found.push(['document', document.title.slice(0, 60)]);
  return found;
}"""
_ALIVE = "img, iframe, object, embed, a[href^='javascript'], [onload], [onerror], body b b"


def assert_plain(page: Page, view: str) -> None:
    """Nothing has run, nothing of the corpus is an element, and nothing on screen is hidden or turned."""
    assert page.evaluate("window.hurt") is None, view
    assert page.locator(_ALIVE).count() == 0, view
    found = page.evaluate(_SEEN, hostile_run.HIDDEN)
    assert not found, f"{view}: {found[:5]}"


class TestHostileRun:
    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, shared_page: Page, shared_served: Served) -> Page:
        hostile_run.fill_hostile(shared_served.server.store)
        shared_served.server.notify()
        shared_page.goto(shared_served.server.address + f"&run={hostile_run.RUN}&logged=1")
        until(shared_page, "nanscope?.heatmap?.shown?.length > 0 && nanscope.hasHistograms()")
        until(shared_page, f"nanscope.rowsInOrder()?.length === {len(hostile_run.CORPUS)}")
        return shared_page

    @pytest.fixture
    def page(self, opened: Page) -> Iterator[Page]:
        yield opened
        opened.evaluate("nanscope.closeEvent(); nanscope.closeRow(); nanscope.chooseTab('overview')")

    def test_hostile_text_stays_text_in_every_tab(self, page: Page) -> None:
        for tab in TABS:
            page.evaluate("tab => nanscope.chooseTab(tab)", tab.id)
            until(page, "tab => document.body.dataset.tab === tab", tab.id)
            page.wait_for_timeout(300)
            assert_plain(page, tab.id)
        expect(page.locator("#documents-in-system")).to_have_count(1)

    def test_hostile_text_stays_text_in_palette_and_values(self, page: Page) -> None:
        page.keyboard.press("Control+k")
        page.keyboard.type("gnp.exe")
        expect(page.locator("#palette-list")).to_contain_text("rtl[U+202E]gnp.exe")
        assert_plain(page, "palette")
        page.keyboard.press("Escape")
        expect(page.locator("#palette")).to_be_hidden()
        page.keyboard.press("t")
        expect(page.locator("#values-rows")).to_contain_text("rtl[U+202E]gnp.exe")
        assert_plain(page, "values")
        page.keyboard.press("Escape")

    def test_hostile_text_stays_text_on_hover(self, page: Page) -> None:
        rows = page.evaluate("nanscope.heatmap.shown.length")
        box = page.locator("#heatmap-canvas").bounding_box()
        for row in range(rows):
            page.mouse.move(box["x"] + box["width"] / 3, box["y"] + (row + 0.5) * box["height"] / rows)
            expect(page.locator("#tooltip")).to_be_visible()
            assert_plain(page, f"row {row}")
        for number in range(len(hostile_run.CORPUS)):
            chart = page.locator("#logged-charts .ns-card").nth(number)
            chart.scroll_into_view_if_needed()
            page.wait_for_timeout(100)
            area = chart.bounding_box()
            page.mouse.move(area["x"] + area["width"] / 2, area["y"] + area["height"] / 2)
            page.wait_for_timeout(100)
            assert_plain(page, f"logged {number}")

    def test_hostile_text_stays_text_in_the_panel_of_every_event(self, page: Page) -> None:
        for number in FEW:
            id_ = page.evaluate("number => nanscope.rowsInOrder()[number].id", number)
            page.evaluate("id => nanscope.openEvent(id)", id_)
            until(page, "id => nanscope.panelShown()?.dataset.event === id", id_)
            assert_plain(page, f"event {number}")
        expect(page.locator("#event-content")).to_contain_text("rtl[U+202E]gnp.exe")

    def test_hostile_text_stays_text_in_the_panel_of_every_row(self, page: Page) -> None:
        for number in FEW:
            name = hostile_run.CORPUS[number]
            page.evaluate("name => nanscope.openRow(name)", name)
            until(page, "() => document.querySelector('#row-tables table') !== null")
            page.wait_for_timeout(200)
            assert_plain(page, f"row {number}")
            page.evaluate("nanscope.closeRow()")
        page.evaluate("nanscope.openRow('')")
        page.locator("#row-select").click()
        expect(page.locator("[role=option]:visible", has_text="rtl[U+202E]gnp.exe").first).to_be_visible()
        assert_plain(page, "choice of rows")
        page.keyboard.press("Escape")


def test_hostile_text_stays_text_in_an_exported_page(
    served: Served, browser: Browser, tmp_path: Path
) -> None:
    from dashboard.export.html import export_html

    hostile_run.fill_hostile(served.server.store)
    file = tmp_path / "export.html"
    file.write_text(export_html(served.server.store, hostile_run.RUN), encoding="utf-8")
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(file.as_uri())
    expect(page.locator("#events details.event")).to_have_count(len(hostile_run.CORPUS))
    for fold in page.locator("details").all():
        fold.evaluate("fold => { fold.open = true; }")
    assert_plain(page, "export")
    assert not problems and [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    page.close()
