"""Zoom and pan in a real Chromium: the old picture while they move, and a fresh one at rest."""

from __future__ import annotations

import pytest
from page_fixtures import Served, page_runs, until
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

SLOW = """() => {
    const painted = nanscope.heatmapPainted;
    window.old = nanscope.axis();
    nanscope.heatmapPainted = (ms, isWhole) => { painted(100, isWhole); window.old = nanscope.axis(); };
}"""
"""Lets the page believe that its heatmap takes long to paint, as one of many layers does; keeps its axis."""
PAN = """(frames) => new Promise((done) => {
    const canvas = document.querySelector('#heatmap-canvas'), seen = [];
    const move = (at) => {
        if (at) {
            const axis = nanscope.axis(), box = nanscope.heatmapBox(), shown = canvas.getBoundingClientRect();
            const left = nanscope.plot('heatmap').getBoundingClientRect().left + box.l;
            seen.push({
                isStretched: canvas.style.transform !== '',
                apart: Math.abs(shown.left + window.old.of(70) * shown.width - (left + axis.of(70) * box.w)),
                isMoving: nanscope.isMoving(),
                line: Number.parseFloat(document.querySelector('#origin-line').style.left) + 1
                    - box.l - axis.of(69.5) * box.w,
            });
        }
        if (at === frames) return done(seen);
        nanscope.showSteps(60 - at, 110 - 2 * at);
        requestAnimationFrame(() => setTimeout(move, 0, at + 1));
    };
    move(0);
})"""
"""Zooms and pans at every frame; how far step 70 and an origin's line are from their places, in pixels."""
FRESH = """() => {
    const pictures = () => ['#heatmap-canvas', '#plot-loss canvas', '#plot-grad_norm canvas'].map(
        (each) => document.querySelector(each).toDataURL());
    const before = pictures(), theme = nanscope.themeName;
    for (const name of ['light', 'dark', theme]) {
        nanscope.themeName = name;
        nanscope.drawHeatmap();
        nanscope.drawLines();
    }
    return pictures().map((each, at) => each === before[at]);
}"""
"""Whether what is on screen is what painting anew gives: another theme leaves nothing of a picture."""


def open_still(page: Page, served: Served) -> None:
    served.fill(steps=range(120), bad={70: "nan", 90: "inf"})
    page.goto(served.server.address + "&run=demo-run&steps=60-110")
    until(page, "document.querySelectorAll('#heatmap-labels button').length > 0")
    until(page, "nanscope.array('heatmap/steps')[0] === 60")
    page.evaluate(SLOW)


def test_heatmap_that_moves_is_the_old_picture_at_the_place_of_its_steps(page: Page, served: Served) -> None:
    open_still(page, served)
    seen = page.evaluate(PAN, 12)
    stretched = [frame["apart"] for frame in seen if frame["isStretched"]]
    assert len(stretched) >= 6
    assert max(stretched) < 0.1


def test_heatmap_and_tracks_at_rest_are_as_painted_anew(page: Page, served: Served) -> None:
    open_still(page, served)
    page.evaluate(PAN, 12)
    until(page, "!nanscope.isMoving() && nanscope.array('heatmap/steps')[0] === nanscope.range[0]")
    until(page, "document.querySelector('#heatmap-canvas').style.transform === ''")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate(FRESH) == [True, True, True]
    first, end = page.evaluate("nanscope.range")
    assert (first, end) == (49, 88)
    assert f"steps={first}-{end}" in page.url


def test_origin_line_goes_along_while_the_picture_is_stretched(page: Page, served: Served) -> None:
    open_still(page, served)
    served.add_event(page_runs.event(70))
    expect(page.locator("#origin-line")).to_be_visible()
    # On a busy machine the page may come to rest between two frames.
    moving = [each["line"] for each in page.evaluate(PAN, 12) if each["isMoving"]]
    assert moving and max(map(abs, moving)) < 0.1
