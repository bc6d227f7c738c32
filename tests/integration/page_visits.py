"""Going to another address of a page that is open, for tests of a class that share one.

To load a page takes a second of CPU, to go on in it a third of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_fixtures import Served, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

DESK = {"width": 1440, "height": 900}
_VISIT = """query => {
    if (!window.visited) {
        window.visited = {};
        nanscope.on("message", header => {
            if (header.charts && header.run === nanscope.view.run) visited.isAnswered = true;
        });
    }
    for (const each of document.querySelectorAll("dialog[open]")) each.close();
    for (const [part, button] of [["menu", "page-menu"], ["run-picker", "run-select"]]) {
        if (!nanscope.byId(part).hidden) nanscope.byId(button).click();
    }
    nanscope.closeEvent();
    nanscope.closeRow(); // of another run's row with this name, it would go on showing the numbers
    document.activeElement.blur();
    nanscope.setCrosshair(null);
    nanscope.byId("layers-tree").scrollTop = 0;
    visited.isAnswered = false;
    const isNamed = new URLSearchParams(query).has("run");
    nanscope.visit(query, isNamed);
    if (!isNamed) nanscope.emit("runs", nanscope.runs); // of which the page chooses one
}"""
_IS_LISTED = """query => {
    const run = new URLSearchParams(query).get("run"); // a test may have ended with a load
    return window.nanscope?.runs?.some(each => run === null || each.run === run) ?? false;
}"""
_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
_MAY_STRAY = "dialog[open], .ns-aside, #menu, #run-picker, #tooltip, #crosshair"
_STRAY = f"""[...document.querySelectorAll("{_MAY_STRAY}")].filter(each => each.checkVisibility())
    .filter(each => (nanscope.view[each.id.replace("-aside", "")] ?? null) === null).map(each => each.id)"""


def visit(page: Page, query: str) -> None:
    """Show what an address of the open page says, as if it were opened now: at a desk, nothing else open.

    Returns when what the server has answered is on screen.
    """
    if page.viewport_size != DESK:
        page.set_viewport_size(DESK)
    page.mouse.move(1, 1)
    until(page, _IS_LISTED, query)  # from a run that is not, the page goes to another
    page.evaluate(_VISIT, query)
    until(page, "visited.isAnswered")
    page.evaluate(_FRAMES)
    assert page.evaluate(_STRAY) == []
    assert page.evaluate("document.activeElement === document.body")


class OnePage:
    """Its tests have one server and one page, in which they go to their addresses with `visit`.

    A run that one of them changes is its own: with other names, they do not disturb each other.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, shared_served: Served) -> Served:
        return shared_served


class RunsOfTheirOwn(OnePage):
    """Each of its tests visits a run of its own, beside a short one by which the page was opened."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, shared_page: Page, served: Served) -> Page:
        served.fill(steps=range(5))
        shared_page.goto(served.server.address + "&run=demo-run")
        until(shared_page, "window.nanscope?.range != null")
        return shared_page
