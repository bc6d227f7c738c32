"""The picture that the page makes of itself: what is on screen is in it, and it says what it shows."""

from __future__ import annotations

import struct

import pytest
from page_fixtures import Served, until
from playwright.sync_api import Page

pytestmark = pytest.mark.browser

PIXELS = """colour => {
    const canvas = nanscope.picture();
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const wanted = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
    let found = 0;
    for (let at = 0; at < data.data.length; at += 4)
        if (wanted.every((value, part) => Math.abs(data.data[at + part] - value) < 4)) found++;
    return found; }"""


def test_png_is_a_picture_of_the_view_with_its_steps_in_words(page: Page, served: Served) -> None:
    served.fill(steps=range(100), bad=dict.fromkeys(range(60, 100), "nan"))
    page.goto(served.server.address)
    until(page, "nanscope.painted?.('grad_norm') && nanscope.heatmap.fields")
    page.evaluate("nanscope.exportPng && nanscope.zoom(40, 79)")
    until(page, "nanscope.painted('loss').axis.first === 39.5")
    line, nan = page.evaluate("[nanscope.theme().colours.series[0], nanscope.theme().colours.nan]")
    assert page.evaluate(PIXELS, line) > 100
    assert page.evaluate(PIXELS, nan) > 5000
    assert page.evaluate(PIXELS, "#123456") == 0
    assert "steps 40 to 79" in page.evaluate("nanscope.pictureWords()")
    page.locator("#page-menu").click()
    with page.expect_download() as download:
        page.locator("#export-png").click()
    assert download.value.suggested_filename == "demo-run-overview.png"
    data = download.value.path().read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == tuple(
        page.evaluate("(({ width, height }) => [width, height])(nanscope.picture())")
    )
