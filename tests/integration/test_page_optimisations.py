"""Compared optimisation modes from the front door: a real training, a real server, its page in a browser."""

from __future__ import annotations

import pytest
from page_fixtures import Served
from playwright.sync_api import Page, expect
from told_training import told_training

from probe.wire.compared_modes import KIND, OptimizationBody
from probe.wire.documents import read_body

pytestmark = pytest.mark.timeout(180)


@pytest.mark.browser
@pytest.mark.capability(77)
def test_compared_modes_are_a_table_of_the_view_profile(page: Page, served: Served) -> None:
    with told_training(served.folder, script="optimised_until_told.py") as training:
        page.goto(served.server.address)
        page.locator("#tab-profile").click()
        section = page.locator(f"#documents-{KIND}")
        expect(section).to_have_count(1)
        expect(section.get_by_role("row")).to_have_count(4)
        (found,) = served.server.store.documents(training.run, KIND, 0)
        body = read_body(found.document, OptimizationBody)
        expect(section).to_contain_text(f"Recommended: {body.recommended}. {body.why}")
        row = section.get_by_role("row", name="memory_efficient")
        expect(row).to_contain_text("within limits")
        speedup = next(one.speedup for one in body.rows if one.mode == "memory_efficient")
        expect(row).to_contain_text(f"{speedup:.2f}\N{MULTIPLICATION SIGN}")
        training.end()
