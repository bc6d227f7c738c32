"""Every view of the page, its asides, menus and dialogs, in both themes, as axe-core sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from axe_fixtures import THEMED, axe_source, grave_faults
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Page, expect

from dashboard.page.tabs import TABS
from dashboard.store.protocol import StepNote

pytestmark = pytest.mark.browser


def open_page(page: Page, served: Served) -> None:
    served.fill(steps=range(80), is_full=True, bad=dict.fromkeys(range(60, 80), "nan"), start_time=1.7e9)
    served.fill(steps=range(80), rank=1)
    served.add_event(page_runs.event(60))
    served.add_event(
        page_runs.event(30, kind="loss_spike", severity="warning", message="Loss spike at step 30")
    )
    for number in range(3):
        note = StepNote(id=f"n{number}", step=20 * number, text="lr halved", time=1.7e9)
        served.server.store.write_note("demo-run", note)
    page_runs.add_frames(served.server.store, page_runs.module_times(45))
    snapshots = (page_runs.memory_snapshot(step) for step in (10, 50))
    page_runs.add_records(served.server.store, *snapshots, page_runs.tracked_tensor("logits"))
    page.goto(served.server.address)
    until(page, "window.nanscope?.heatmap?.fields !== null && nanscope.rowsInOrder()?.length >= 2")
    until(page, "nanscope.heatmap.shown.length > 0 && nanscope.hasHistograms()")


def in_menu(page: Page, look: Callable[[str], None]) -> None:
    page.locator("#page-menu").click()
    expect(page.locator("#copy-link")).to_be_visible()
    expect(page.locator("#menu-views [role=menuitem]")).to_have_count(1)
    look("menu")
    page.keyboard.press("Escape")
    expect(page.locator("#copy-link")).to_be_hidden()


def in_selects(page: Page, look: Callable[[str], None]) -> None:
    page.locator("#rank-select").click()
    expect(page.locator("[role=listbox]:visible")).to_have_count(1)
    page.wait_for_timeout(300)
    look("rank-select")
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.locator("#run-select").click()
    expect(page.locator("#run-picker-rows")).to_contain_text("step 79")
    look("run picker")
    page.keyboard.press("Escape")


def in_asides(page: Page, look: Callable[[str], None]) -> None:
    page.evaluate("nanscope.openEvent(nanscope.rowsInOrder()[0].id)")
    expect(page.locator("#event-headline")).to_be_visible()
    for fold in page.locator("#event-content details").all():
        fold.evaluate("fold => { fold.open = true; }")
    look("event aside")
    page.evaluate("nanscope.openRow('embed.weight')")
    expect(page.locator("#row-head")).to_contain_text("embed")
    expect(page.locator("#row-tables table").first).to_be_visible()
    expect(page.locator("#row-canvases canvas").first).to_be_visible()
    expect(page.locator("#row-newest-rows tr").first).to_be_visible()
    look("row aside")
    page.evaluate("nanscope.toggleWide()")
    expect(page.locator(".ns-main")).to_be_hidden()
    look("row over the page")
    page.evaluate("nanscope.closeRow()")


def close_dialog(page: Page) -> None:
    page.keyboard.press("Escape")
    expect(page.locator("dialog[open]")).to_have_count(0)


def in_dialogs(page: Page, look: Callable[[str], None]) -> None:
    page.keyboard.press("?")
    expect(page.locator("#key-sheet")).to_be_visible()
    look("keys")
    close_dialog(page)
    page.keyboard.press("Control+k")
    page.keyboard.type("embed")
    expect(page.locator("#palette-list [role=option]").first).to_contain_text("embed")
    look("palette")
    close_dialog(page)
    page.keyboard.press("t")
    expect(page.locator("#values-rows tr").first).to_be_visible()
    look("values")
    close_dialog(page)
    page.keyboard.press("m")
    expect(page.locator("#note-dialog")).to_be_visible()
    look("note")
    close_dialog(page)
    page.evaluate("nanscope.byId('save-view').click()")
    page.get_by_label("Name of this view").fill("mine")
    page.locator("#views-save").click()
    expect(page.locator("#views-list li")).to_have_count(1)
    look("saved views")
    close_dialog(page)
    page.evaluate("nanscope.byId('editor').click()")
    page.locator("#editor-choices input[value=own]").check()
    expect(page.locator("#editor-said")).not_to_be_empty()
    look("editor")
    close_dialog(page)
    page.evaluate("nanscope.openExport('loss')")
    expect(page.locator("#export-choice")).to_have_value("loss")
    look("export of one track")
    close_dialog(page)
    page.evaluate(
        "nanscope.setText(nanscope.byId('toast-text'), 'NaN first at step 60');"
        "nanscope.byId('toast').hidden = false"
    )
    look("toast")


class TestEveryView:
    """One page, whose theme follows the system's."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, shared_served: Served) -> Page:
        source = axe_source()
        shared_page.add_init_script(
            "localStorage.setItem('nanscope-views', JSON.stringify([{ name: 'mine', query: 'tab=runs' }]));"
            "localStorage.setItem('nanscope-editor', JSON.stringify(['vscode', '']))"
        )
        open_page(shared_page, shared_served)
        until(shared_page, "nanscope.annotations.length === 3")
        shared_page.evaluate(source)
        return shared_page

    @pytest.fixture(autouse=True)
    def as_it_was(self, page: Page) -> Iterator[None]:
        yield
        page.evaluate("nanscope.byId('toast').hidden = true")
        page.emulate_media(color_scheme="dark")
        assert page.locator("dialog[open], .ns-aside:visible").count() == 0

    @pytest.mark.parametrize(("theme", "rules"), [("dark", None), ("light", THEMED)], ids=["dark", "light"])
    def test_every_view_has_no_grave_fault_of_accessibility(
        self, page: Page, theme: Literal["dark", "light"], rules: tuple[str, ...] | None
    ) -> None:
        page.emulate_media(color_scheme=theme)
        until(page, "theme => document.documentElement.dataset.theme === theme", theme)
        faults: list[str] = []

        def look(view: str) -> None:
            faults.extend(grave_faults(page, view, rules=rules))

        for tab in TABS:
            page.evaluate("tab => nanscope.chooseTab(tab)", tab.id)
            until(page, "tab => document.body.dataset.tab === tab", tab.id)
            page.wait_for_timeout(400)
            look(tab.id)
        page.evaluate("nanscope.change({ tab: 'layers', flow: true })")
        expect(page.locator("#flow-side h3").first).to_be_visible()
        look("gradient flow")
        page.evaluate("nanscope.change({ tab: 'overview', flow: false })")
        in_menu(page, look)
        in_selects(page, look)
        in_asides(page, look)
        in_dialogs(page, look)
        assert not faults, "\n".join(faults)
