"""The palette, the table of values, and the switch of single keys, in a real Chromium."""

from __future__ import annotations

import pytest
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

SPIKE = page_runs.event(30, kind="loss_spike", severity="warning", message="Loss spike at step 30")


class TestPalette:
    """One page, where no dialog is open when a test begins."""

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, shared_page: Page, shared_served: Served) -> Page:
        shared_served.fill(steps=range(40), is_full=True, bad={39: "nan"}, name="second.py")
        shared_served.fill(steps=range(10), run="first-run", name="first.py", start_time=1.6e9)
        shared_served.add_event(SPIKE)
        shared_page.goto(shared_served.server.address + "&run=demo-run")
        until(shared_page, "nanscope?.heatmap?.shown?.length > 0 && nanscope.hasHistograms()")
        until(shared_page, "nanscope.rowsInOrder()?.length === 1 && nanscope.runs.length === 2")
        until(shared_page, "nanscope.painted('loss')?.lines.some(line => line.x.length)")
        return shared_page

    @pytest.fixture
    def page(self, opened: Page) -> Page:
        opened.evaluate(
            "for (const each of document.querySelectorAll('dialog[open]')) each.close();"
            "nanscope.closeEvent(); nanscope.closeRow(); nanscope.chooseTab('overview')"
        )
        opened.evaluate("document.activeElement.blur()")
        return opened

    @pytest.fixture
    def palette(self, page: Page) -> Page:
        page.keyboard.press("Control+k")
        expect(page.locator("#palette-list [aria-selected=true]")).to_have_count(1)
        return page

    @pytest.mark.parametrize(
        ("letters", "shown"),
        [
            ("layers", "Layers"),
            ("bl1aqkv", "blocks.1.attn.qkv"),
            ("mlp2", "mlp.2"),
            ("spike", "Loss spike"),
            ("json", "JSON"),
        ],
    )
    def test_palette_names_the_best_match_first(self, palette: Page, letters: str, shown: str) -> None:
        palette.keyboard.type(letters)
        expect(palette.locator("#palette-list [aria-selected=true]")).to_contain_text(shown)

    def test_palette_goes_by_arrows_and_enter_and_names_the_active_entry(self, palette: Page) -> None:
        palette.keyboard.type("view")
        field = palette.locator(".ns-palette-field")
        expect(field).to_have_attribute("aria-activedescendant", "palette-option-0")
        palette.keyboard.press("ArrowDown")
        expect(field).to_have_attribute("aria-activedescendant", "palette-option-1")
        palette.keyboard.press("ArrowUp")
        palette.keyboard.press("ArrowUp")
        chosen = palette.locator("#palette-list [aria-selected=true]")
        expect(chosen).to_have_count(1)
        assert chosen.get_attribute("id") != "palette-option-0"
        palette.keyboard.press("Escape")
        expect(palette.locator("#palette")).to_be_hidden()

    def test_palette_opens_view_event_and_layer(self, page: Page) -> None:
        for letters, opened in (
            ("events", "#event-table"),
            ("spike", "#event-content"),
            ("embed", "#row-head"),
        ):
            page.keyboard.press("Meta+k")
            page.keyboard.type(letters)
            page.keyboard.press("Enter")
            expect(page.locator("#palette")).to_be_hidden()
            expect(page.locator(opened)).to_be_visible()

    def test_palette_list_is_bounded_and_says_so(self, palette: Page) -> None:
        palette.keyboard.type("b")
        assert palette.locator("#palette-list [role=option]").count() <= 50
        palette.evaluate(
            "nanscope.heatmap.rows.push(...Array.from({ length: 60 }, (_, number) => `zz.${number}`))"
        )
        palette.keyboard.press("Control+k")
        palette.keyboard.press("Control+k")
        palette.keyboard.type("zz")
        expect(palette.locator("#palette-count")).to_contain_text("the first 50 of")
        palette.evaluate("nanscope.heatmap.rows.length -= 60")

    def test_values_are_those_of_the_step_and_the_arrows_move_it(self, page: Page) -> None:
        page.keyboard.press("t")
        expect(page.locator("#values-step")).to_have_text("Step 39")
        expect(page.locator("#values-lines tr", has_text="Loss").first).to_contain_text("NaN")
        expect(page.locator("#values-rows tr", has_text="embed").first).to_contain_text("NaN")
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#values-step")).to_have_text("Step 38")
        expect(page.locator("#values-said")).to_contain_text("Step 38, loss")
        loss = page.evaluate("String(Number(nanscope.array('loss/loss/line/y')[38].toPrecision(5)))")
        expect(page.locator("#values-lines tr", has_text="accuracy")).to_have_count(0)  # folded
        expect(page.locator("#values-lines tr").first).to_contain_text(loss)
        page.keyboard.press("Home")
        expect(page.locator("#values-before")).to_be_disabled()
        page.locator("#values-after").click()
        expect(page.locator("#values-step")).to_have_text("Step 1")

    def test_full_screen_key_shows_the_charts_alone_and_back(self, page: Page) -> None:
        at_top = "document.elementFromPoint(innerWidth / 2, 4).closest('.ns-body') !== null"
        assert not page.evaluate(at_top)
        page.keyboard.press("f")
        until(page, "document.fullscreenElement?.className === 'ns-body'")
        assert page.evaluate(at_top)
        page.keyboard.press("f")
        until(page, "document.fullscreenElement === null")
        assert not page.evaluate(at_top)

    def test_switch_turns_keys_of_one_letter_off_and_is_remembered(self, page: Page) -> None:
        page.keyboard.press("?")
        page.locator("#key-switch").click()
        expect(page.locator("#key-switch")).to_have_attribute("aria-checked", "false")
        page.keyboard.press("Escape")
        expect(page.locator("#key-sheet")).to_be_hidden()
        page.keyboard.press("n")
        page.keyboard.press("t")
        page.wait_for_timeout(200)
        assert page.evaluate(
            "nanscope.view.event === null && document.querySelector('dialog[open]') === null"
        )
        page.keyboard.press("Space")
        expect(page.locator("#live-button")).to_have_attribute("aria-pressed", "false")
        page.keyboard.press("Space")
        page.reload()
        until(page, "window.nanscope?.rowsInOrder?.()?.length === 1")
        expect(page.locator("#key-switch")).to_have_attribute("aria-checked", "false")
        page.evaluate("document.getElementById('key-switch').click()")
        page.keyboard.press("n")
        until(page, "nanscope.view.event !== null")
