"""Level and deletion from the page: a real training, a real server, a real browser."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from page_fixtures import BOTH_ENGINES, Served, page_runs, until
from playwright.sync_api import Page, expect
from told_training import told_training

from probe.delivery.spool_care import is_written

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def open_section(page: Page, served: Served, run: str) -> None:
    page.goto(f"{served.server.address}&run={run}&tab=controls")


def choose(page: Page, level: str) -> None:
    page.locator("#level-choice").click()
    page.get_by_role("option", name=f"{level}:").click()
    page.locator("#level-set").click()


def changes(served: Served, run: str) -> list[str]:
    return [event.subject for event in served.server.store.events(run) if event.kind == "level_changed"]


@pytest.mark.capability(50)
def test_level_from_the_page_switches_a_training_on_up_and_off(page: Page, served: Served) -> None:
    with told_training(served.folder, "off") as training:
        until_known(page, served, training.run)
        open_section(page, served, training.run)
        expect(page.locator("#level-said")).to_have_text("The level is off.")
        for level in ("basic", "advanced", "off"):
            choose(page, level)
            expect(page.locator("#level-said")).to_contain_text(f"The level is {level}")
            until_true(page, lambda level=level: changes(served, training.run)[-1:] == [level])
        assert changes(served, training.run) == ["basic", "advanced", "off"]
        assert served.server.store.scalar_names(training.run)
        expect(page.locator("#delete-ask")).to_be_disabled()
        expect(page.locator("#delete-said")).to_contain_text("it is still being written")
        training.end()
        expect(page.locator("#level-set")).to_be_disabled()
        expect(page.locator("#level-said")).to_contain_text("This run has ended")


@BOTH_ENGINES
@pytest.mark.capability(50, 51)
def test_ended_run_is_deleted_from_the_page_after_a_question(page: Page, served: Served) -> None:
    with told_training(served.folder) as training:
        until_known(page, served, training.run)
        training.end()
    served.fill(steps=range(9))
    folder = served.folder / "spool" / training.run
    until_true(page, lambda: is_left(folder))
    open_section(page, served, training.run)
    page.locator("#delete-ask").click()
    expect(page.locator("#delete-question")).to_contain_text(training.run)
    page.locator("#delete-keep").click()
    expect(page.locator("#delete-dialog")).to_be_hidden()
    assert folder.is_dir() and len(served.server.store.runs()) == 2
    page.locator("#delete-ask").click()
    page.locator("#delete-confirm").click()
    until(page, "document.querySelector('#run-select').value.includes('demo-run')")
    assert [run.run for run in served.server.store.runs()] == ["demo-run"] and not folder.exists()


def test_starred_run_cannot_be_deleted_until_its_star_is_off(page: Page, served: Served) -> None:
    served.fill(steps=range(9))
    page_runs.end_run(served.server.store)
    served.server.store.mark_run("demo-run", starred=True)
    served.server.notify()
    open_section(page, served, "demo-run")
    expect(page.locator("#delete-ask")).to_be_disabled()
    expect(page.locator("#delete-said")).to_contain_text("it is starred")


def is_left(folder: Path) -> bool:
    """Whether nobody writes to a run's folder any more, which is made to look old."""
    for path in folder.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    return not is_written(folder)


def until_true(page: Page, condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("not true within 30 s")


def until_known(page: Page, served: Served, run: str) -> None:
    until_true(page, lambda: run in [one.run for one in served.server.store.runs()])
