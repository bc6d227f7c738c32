"""Exports from the page's menu: what it says it covers, and that a file has just that."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from page_fixtures import BOTH_ENGINES, Served, until
from page_visits import OnePage, visit
from playwright.sync_api import Download, Page, expect

pytestmark = pytest.mark.browser


def open_run(page: Page, served: Served, query: str = "") -> None:
    served.fill(steps=range(40), is_full=True)
    page.goto(served.server.address + "&run=demo-run" + query)
    until(page, "nanscope?.heatmap?.shown?.length > 0")


def downloaded(page: Page, click: str) -> Download:
    with page.expect_download() as found:
        page.locator(click).click()
    return found.value


def rows_of(download: Download, folder: Path) -> list[dict[str, str]]:
    path = folder / download.suggested_filename
    download.save_as(path)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


class TestExport(OnePage):
    """A run that stays as it is, and one that goes on."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        open_run(shared_page, served)
        return shared_page

    def test_menu_says_what_a_file_covers_while_steps_arrive(self, page: Page, served: Served) -> None:
        served.fill(run="growing", steps=range(40), is_full=True)
        visit(page, "run=growing")
        page.locator("#page-menu").click()
        expect(page.locator("#export-covers")).to_have_text("steps 0\u201339, 27 layers")
        served.fill(run="growing", steps=range(40, 60), is_full=True)
        expect(page.locator("#export-covers")).to_have_text("steps 0\u201359, 27 layers")
        page.keyboard.press("Escape")
        page.evaluate("nanscope.zoom(10, 19)")
        page.locator("#page-menu").click()
        expect(page.locator("#export-covers")).to_have_text("steps 10\u201319, 27 layers")

    def test_right_click_at_a_tracks_name_exports_that_track(self, page: Page) -> None:
        visit(page, "run=demo-run")
        page.locator("[data-chart=grad_norm] .ns-gutter").click(button="right")
        expect(page.locator("#export-choice")).to_have_value("grad_norm")
        expect(page.locator("#export-forms [data-form=html]")).to_be_enabled()

    def test_names_of_tracks_stay_text(self, page: Page) -> None:
        visit(page, "run=demo-run")
        page.evaluate("nanscope.openExport('log/<b>bold</b>')")
        expect(page.locator("#export-choice")).to_have_value("log/<b>bold</b>")
        assert page.locator("#export-dialog b").count() == 0


@BOTH_ENGINES
def test_one_track_is_chosen_in_a_dialog_and_has_the_steps_on_screen(
    page: Page, served: Served, tmp_path: Path
) -> None:
    open_run(page, served, "&steps=10-20")
    page.locator("#page-menu").click()
    page.locator("#export-track").click()
    expect(page.locator("#export-dialog")).to_be_visible()
    choice = page.locator("#export-choice")
    expect(choice.locator("option").first).to_have_text("Loss (loss)")
    choice.select_option("log/accuracy")
    expect(page.locator("#export-track-covers")).to_have_text("steps 10\u201319")
    download = downloaded(page, "#export-forms [data-form=csv]")
    assert download.suggested_filename == "nanscope-demo-run-log_accuracy.csv"
    found = [(row["name"], int(row["step"]), float(row["mean"])) for row in rows_of(download, tmp_path)]
    assert found == [("log/accuracy", step, step / 1000) for step in range(10, 20)]
    choice.select_option("heatmap")
    expect(page.locator("#export-track-covers")).to_have_text("steps 10\u201319, 27 layers")
    path = tmp_path / "heatmap.json"
    downloaded(page, "#export-forms [data-form=json]").save_as(path)
    document = json.loads(path.read_text())
    assert document["track"] == "heatmap" and document["heatmap"]["steps"] == list(range(10, 20))
    page.locator("#export-close").click()
    expect(page.locator("#export-dialog")).to_be_hidden()
