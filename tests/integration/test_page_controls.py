"""The controls of a running training: a real training, server and browser; each is an event of the run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from page_fixtures import Served
from playwright.sync_api import Page, Route, expect
from told_training import told_training

from dashboard import ids
from probe.wire import Event
from probe.wire.documents import read_body
from probe.wire.memory_snapshots import MemorySnapshot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def until_true(page: Page, condition: Callable[[], object]) -> None:
    for _ in range(900):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("not true within 45 s")


def open_controls(page: Page, served: Served, run: str) -> None:
    until_true(page, lambda: run in [one.run for one in served.server.store.runs()])
    page.goto(f"{served.server.address}&run={run}&tab=controls")
    expect(page.locator("#controls-reason")).to_contain_text(", overhead limit ")
    expect(page.locator("#control-memory_snapshot")).to_be_enabled()


def events(served: Served, run: str, kind: str) -> list[Event]:
    return [event for event in served.server.store.events(run) if event.kind == kind]


def said(page: Page, act: str, text: str | re.Pattern[str]) -> None:
    expect(page.locator(f"#control-{act}-said")).to_contain_text(text)


@pytest.mark.capability(49)
def test_preset_limit_and_switches_are_followed_and_are_events_of_the_run(page: Page, served: Served) -> None:
    with told_training(served.folder, "basic") as training:
        open_controls(page, served, training.run)
        page.locator("#preset-choice").click()
        page.get_by_role("option", name="gradients:").click()
        page.locator("#control-preset").click()
        said(page, "preset", "Accepted, from the next step on")
        expect(page.locator("#controls-reason")).to_contain_text("basic with preset gradients")
        page.locator("#limit-value").fill("7.5")
        page.locator("#control-limit").click()
        said(page, "limit", "Accepted, from the next step on")
        expect(page.locator("#controls-reason")).to_contain_text("overhead limit 7.5 % of a step")
        cosine = page.get_by_role("switch", name="Cosines between gradients")
        expect(cosine).to_have_attribute("aria-checked", "true")
        cosine.focus()
        page.keyboard.press("Space")
        expect(cosine).to_have_attribute("aria-checked", "false")
        expect(cosine.locator("xpath=..")).to_contain_text("Accepted, from the next step on")
        times = page.get_by_role("switch", name="Module times")
        times.click()
        expect(times).to_have_attribute("aria-checked", "true")
        expect(times.locator("xpath=..")).to_contain_text("every 5 steps")
        until_true(page, lambda: len(events(served, training.run, "level_changed")) >= 4)
        told = "\n".join(event.message for event in events(served, training.run, "level_changed"))
        for part in (
            "Level basic with preset gradients instead of basic",
            "asked for by the page",
            "7.5 % instead of 10 %",
            "Cosines between gradients: never (was: every 10 steps)",
            "Module times: every 5 steps (was: never)",
        ):
            assert part in told
        training.end()
        expect(page.locator("#controls-reason")).to_contain_text("This run has ended")
        expect(page.locator("#control-bundle")).to_be_disabled()


def test_snapshot_bundle_and_memory_are_taken_now_and_are_events(page: Page, served: Served) -> None:
    with told_training(served.folder, "basic") as training:
        open_controls(page, served, training.run)
        page.locator("#control-snapshot").click()
        said(page, "snapshot", "Accepted")
        page.locator("#control-bundle").click()
        said(page, "bundle", "Accepted")
        page.locator("#control-memory_snapshot").click()
        said(page, "memory_snapshot", "Taken: see Memory")
        run, folder = training.run, served.folder / "spool" / training.run
        until_true(page, lambda: len(events(served, run, "snapshot")) == 2)
        memory, numbers = sorted(events(served, run, "snapshot"), key=lambda event: event.subject)
        assert memory.subject == "asked for by the page (1)"
        (written,) = (folder / "snapshots").iterdir()
        assert written.stem == numbers.id and json.loads(written.read_text())
        until_true(page, lambda: list((folder / "bundles").glob("*/bundle.json")))
        (kept,) = (folder / "bundles").iterdir()
        until_true(page, lambda: [e for e in served.server.store.events(run) if e.id == kept.name])
        (document,) = served.server.store.documents(run, "memory_snapshot", 0)
        assert read_body(document.document, MemorySnapshot).cause == "request"
        page.locator("#tab-memory").click()
        expect(page.locator("#documents-in-memory")).to_contain_text("asked for by the page (1)")
        training.end()


@contextmanager
def answered_late(page: Page, act: str) -> Iterator[None]:
    """Hold back the answer to a click until the page has asked for the training's state once more."""
    address, held, asked = re.compile("/_dash-update-component"), [], []

    def pass_on(route: Route) -> None:
        body = route.request.post_data or ""
        changed = json.loads(body)["changedPropIds"] if body.startswith("{") else []
        if f"control-{act}.n_clicks" in changed:
            held.append((route, route.fetch()))
        else:
            asked.extend(held and [one for one in changed if one == f"{ids.ACTIONS_SCOPE}.data"])
            route.continue_()

    page.route(address, pass_on)
    yield
    until_true(page, lambda: asked)
    ((route, response),) = held
    route.fulfill(response=response)
    page.unroute(address)


def test_training_is_paused_and_resumed_and_the_recording_too(page: Page, served: Served) -> None:
    with told_training(served.folder, "advanced") as training:
        open_controls(page, served, training.run)
        page.locator("#control-pause").click()
        said(page, "pause", "pauses before its next update")
        until_true(
            page, lambda: any("pause:" in event.subject for event in events(served, training.run, "custom"))
        )
        page.locator("#control-pause").click()
        said(page, "pause", "Refused: the training is paused already.")
        expect(page.locator("#controls-reason")).to_contain_text("The training is paused at step")
        page.locator("#control-resume").click()
        said(page, "resume", "training continues")
        page.locator("#control-resume").click()
        said(page, "resume", "Refused: the training is not paused.")
        # The run's level changes by what was asked, and the page asks for the state because of that.
        with answered_late(page, "record"):
            page.locator("#control-record").click()
        said(page, "record", "level `off` from the next step on")
        for act in ("snapshot", "bundle", "pause"):
            expect(page.locator(f"#control-{act}")).to_be_disabled()
            said(page, act, "Level `off` records no steps")
        expect(page.locator("#control-record")).to_have_text("Record again, at level advanced")
        until_true(
            page, lambda: [e.subject for e in events(served, training.run, "level_changed")] == ["off"]
        )
        page.locator("#control-record").click()
        said(page, "record", "level advanced from the next step on")
        expect(page.locator("#control-record")).to_have_text("Pause recording")
        until_true(page, lambda: len(events(served, training.run, "level_changed")) == 2)
        training.end()
