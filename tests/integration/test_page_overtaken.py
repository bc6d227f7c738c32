"""Answers of the live connection that a newer wish of the page has overtaken, in a real Chromium."""

from __future__ import annotations

import page_runs
import pytest
from page_fixtures import Served, until
from page_visits import OnePage, visit
from playwright.sync_api import Page

pytestmark = pytest.mark.browser

# `wish` is taken; in the moment in which its first answer arrives, the page wishes what `next` says.
_OVERTAKE = """([wish, next]) => {
    const { decode } = nanscope;
    const ask = ({ run, ...change }) => (run ? nanscope.chooseRun(run, true) : nanscope.change(change));
    nanscope.decode = buffer => {
        const header = decode(buffer);
        if (header.heatmap?.statistic === nanscope.view.heatmap && header.run === nanscope.view.run) {
            nanscope.decode = decode;
            ask(next);
        }
        return header;
    };
    ask(wish);
}"""
_LABELS = "[...document.querySelectorAll('#heatmap-labels .ns-label-name')].map(each => each.textContent)"
_ROWS = "nanscope.heatmap.rows"


class TestOvertaken(OnePage):
    """Runs of two models; those of one model have the same rows, whose names are sent once."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        served.fill(run="other-model", steps=range(5), blocks=2)
        served.fill(run="passed", steps=range(5))
        served.fill(run="reached", steps=range(5), is_full=True)
        shared_page.goto(served.server.address + "&run=other-model")
        until(shared_page, f"{_LABELS}.length > 0")
        return shared_page

    def test_names_of_the_heatmap_are_of_the_run_that_is_reached(self, page: Page) -> None:
        names, others = ([layer.name for layer in page_runs.layout(blocks).layers] for blocks in (4, 2))
        visit(page, "run=other-model")
        assert page.evaluate(_ROWS) == others != names
        page.evaluate(_OVERTAKE, [{"run": "passed"}, {"run": "reached"}])
        until(page, "count => nanscope.heatmap.fields.rowCount === count", arg=len(names))
        assert page.evaluate("nanscope.view.run") == "reached"
        assert page.evaluate(_ROWS) == names
        until(page, f"{_LABELS}.some(label => label.includes('blocks.3'))")

    def test_names_are_those_of_the_statistic_where_a_zoom_follows_it(self, page: Page) -> None:
        visit(page, "run=reached")
        names = [module.name for module in page_runs.layout().modules]
        names.remove("embed")  # nothing of it was measured there
        assert page.evaluate(_ROWS) != names
        page.evaluate(_OVERTAKE, [{"heatmap": "activation_rms"}, {"first": 0, "end": 3, "paused": True}])
        until(page, "nanscope.heatmap.fields.statistic === 'activation_rms'")
        assert "steps=0-3" in page.url
        assert page.evaluate(_ROWS) == names
