"""The view Profile in a real Chromium: the phases of a step as areas, its modules as an icicle."""

from __future__ import annotations

import re

import pytest
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser
PARTS = ["data", "forward", "backward", "optimizer", "probe", "other"]
SHARES = [0.02, 0.03, 0.04, 0.005, 0.0011, 0.0039]
"""Of a step of 0.1 s: see `page_runs.measured_frame`."""


def hover_step(page: Page, step: int) -> None:
    """Move the pointer to a step of the chart of phases."""
    card = page.locator("[data-chart=step_phases]")
    box = card.bounding_box()
    assert box is not None
    x = page.evaluate(
        "step => { const { box, axis } = nanscope.painted('step_phases');"
        "return box.l + axis.of(step) * box.w }",
        step,
    )
    page.mouse.move(box["x"] + x + 1, box["y"] + 60)
    page.mouse.move(box["x"] + x, box["y"] + 60)
    until(page, f"nanscope.crosshair() === {step}")


def point_at(page: Page, name: str) -> None:
    """Move the pointer to the middle of a module's box."""
    place = page.evaluate(
        "name => { const box = nanscope.icicleBoxes().find(each => each.name === name);"
        "const rect = document.getElementById('icicle-canvas').getBoundingClientRect();"
        "return [rect.left + (box.at + box.width / 2) * rect.width, rect.top + box.depth * 22 + 11] }",
        name,
    )
    page.mouse.move(*place)


class TestProfileView:
    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, shared_page: Page, shared_served: Served) -> Page:
        shared_served.fill(steps=range(60), is_full=True)
        store = shared_served.server.store
        page_runs.add_frames(store, page_runs.module_times(20), page_runs.module_times(40))
        page_runs.add_records(store, page_runs.profile(24, 5))
        shared_served.server.notify()
        shared_page.goto(shared_served.server.address + "&run=demo-run&tab=profile")
        until(shared_page, "nanscope.painted?.('step_phases')?.areas.length === 6")
        until(shared_page, "nanscope.icicleBoxes().length > 0")
        return shared_page

    @pytest.fixture(autouse=True)
    @classmethod
    def as_it_was(cls, opened: Page) -> None:
        opened.mouse.move(5, 5)
        until(opened, "nanscope.crosshair() === null")

    def test_areas_lie_upon_each_other_up_to_the_step_time(self, opened: Page) -> None:
        edges = opened.evaluate(
            "nanscope.painted('step_phases').areas.map(area => [area.low.at(-1), area.high.at(-1)])"
        )
        heights = [high - low for low, high in edges]
        assert heights == pytest.approx(SHARES, abs=1e-6)
        assert edges[0][0] == 0 and edges[-1][1] == pytest.approx(0.1)
        assert [low for low, _ in edges[1:]] == pytest.approx([high for _, high in edges[:-1]])

    def test_gutter_has_the_whole_and_each_part_at_the_crosshair(self, opened: Page) -> None:
        hover_step(opened, 30)
        gutter = opened.locator("#gutter-step_phases")
        expect(gutter.locator(".ns-tile-value")).to_have_text("0.1")
        names = gutter.locator(".ns-legend-name").all_inner_texts()
        assert names[:6] == PARTS and "host time" in names[6]
        values = gutter.locator(".ns-legend-value").all_inner_texts()
        assert [float(value) for value in values] == pytest.approx(SHARES, rel=0.01)

    def test_icicle_is_of_the_newest_times_at_or_before_the_crosshair(self, opened: Page) -> None:
        title, note = opened.locator("#icicle-title"), opened.locator("#icicle-note")
        expect(title).to_have_text("Step 40")
        hover_step(opened, 39)
        expect(title).to_have_text("Steps 24 to 28")
        expect(note).to_contain_text("From a profile")
        hover_step(opened, 23)
        expect(title).to_have_text("Step 20")
        expect(note).to_contain_text("Measured")
        hover_step(opened, 10)
        expect(title).to_have_text("")
        expect(note).to_contain_text("No times yet")
        expect(opened.locator("#icicle-canvas")).to_be_hidden()
        opened.mouse.move(5, 5)
        expect(title).to_have_text("Step 40")

    def test_module_under_the_pointer_is_named_with_its_time(self, opened: Page) -> None:
        opened.locator("#icicle-canvas").scroll_into_view_if_needed()
        point_at(opened, "blocks.1")
        tooltip = opened.locator("#tooltip")
        expect(tooltip.locator("b")).to_have_text("blocks.1")
        box = opened.evaluate("nanscope.icicleBoxes().find(box => box.name === 'blocks.1')")
        assert box["forward_s"] + box["backward_s"] == pytest.approx(box["total_s"])
        assert box["width"] == pytest.approx(box["total_s"] / 0.12, rel=1e-5)
        said = [float(number) for number in re.findall(r"([\d.]+) ms", tooltip.inner_text())]
        parts = ("total_s", "forward_s", "backward_s", "self_s")
        assert said == pytest.approx([1000 * box[part] for part in parts], rel=5e-3)
        opened.mouse.move(5, 5)
        expect(tooltip).to_be_hidden()

    def test_arrow_keys_go_from_module_to_module(self, opened: Page) -> None:
        canvas = opened.locator("#icicle-canvas")
        canvas.focus()

        def says(key: str, name: str) -> None:
            opened.keyboard.press(key)
            expect(canvas).to_have_attribute(
                "aria-valuetext", re.compile(rf"^{re.escape(name)}: .* ms, .* %")
            )

        says("ArrowDown", "(root)")
        says("ArrowDown", "embed")
        says("ArrowRight", "blocks")
        says("ArrowDown", "blocks.0")
        says("ArrowRight", "blocks.1")
        says("ArrowUp", "blocks")
        says("ArrowLeft", "embed")
        says("Home", "(root)")
        opened.evaluate("document.activeElement.blur()")

    def test_t_gives_phases_and_modules_as_a_table(self, opened: Page) -> None:
        opened.keyboard.press("t")
        rows = opened.locator("#values-lines tr").all_inner_texts()
        assert [row.split("\t")[0] for row in rows][:6] == PARTS
        expect(opened.locator("#values-rows-title")).to_have_text("Time by module, step 40")
        table: Locator = opened.locator("#values-rows tr")
        expect(table.first).to_contain_text("(root)")
        expect(table.filter(has_text="blocks.1.mlp.0")).to_contain_text("ms")
        opened.keyboard.press("Escape")
