"""The page's head of a plain loop over a DataLoader that tells nothing of its length: a real training."""

from __future__ import annotations

import re

import pytest
from page_fixtures import Served, until
from playwright.sync_api import Page, expect
from told_training import told_training

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
HEAD = re.compile(
    r"epoch (\d+) \u00b7 step (\d+) of 50 of the epoch \u00b7 ([\d.]+) % \u00b7 about \d+ s left of the epoch"
)


@pytest.mark.capability(63)
def test_page_shows_epoch_step_share_and_time_left_of_a_plain_loop(page: Page, served: Served) -> None:
    with told_training(served.folder, script="epochs_until_told.py"):
        page.goto(served.server.address)
        line = page.locator("#progress-text")
        expect(line).to_have_text(HEAD)
        while (found := HEAD.search(line.inner_text())) is None:
            page.wait_for_timeout(50)  # between two epochs: about so many steps
        step, share = int(found[2]), float(found[3])
        assert share == pytest.approx(100 * step / 50, abs=0.06)
        before = page.evaluate("document.getElementById('progress-bar').value")
        until(page, "before => document.getElementById('progress-bar').value !== before", arg=before)
