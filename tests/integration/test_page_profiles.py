"""Profiles from the front door: a real training, a real server, its HTTP API and its page in a browser."""

from __future__ import annotations

import gzip
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from page_fixtures import TOKEN, Served
from playwright.sync_api import Page, expect
from told_training import told_training

from probe.wire.documents import read_body
from probe.wire.profiles import ProfileBody

pytestmark = pytest.mark.timeout(180)
PATIENCE_S = 60.0


@pytest.fixture
def run(served: Served) -> Iterator[str]:
    """Id of a run that is being trained, and that the server knows."""
    with told_training(served.folder) as training:
        yield training.run


def call(served: Served, path: str, body: dict[str, Any] | None = None) -> bytes:
    page = served.server.page
    request = urllib.request.Request(
        page + path.removeprefix("/"),
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "x-nanscope-token": TOKEN,
            "origin": page.rstrip("/"),
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        data = answer.read()
    assert isinstance(data, bytes)
    return data


def ask(served: Served, run: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask until the run is connected."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            (answer,) = json.loads(call(served, f"/api/v1/runs/{run}/control", body))["answers"]
        except urllib.error.HTTPError as error:
            assert error.code in (404, 409) and time.monotonic() < until_s, error
            time.sleep(0.2)
        else:
            assert isinstance(answer, dict)
            return answer


def profile_of(served: Served, run: str) -> tuple[str, ProfileBody]:
    until_s = time.monotonic() + PATIENCE_S
    while not (found := served.server.store.documents(run, "profile", 0)):
        assert time.monotonic() < until_s, "no profile"
        time.sleep(0.1)
    return found[-1].document.key, read_body(found[-1].document, ProfileBody)


@pytest.mark.capability(45, 46)
def test_profile_by_http_is_stored_with_findings_and_its_trace(served: Served, run: str) -> None:
    answer = ask(served, run, {"do": "profile", "steps": 3})
    assert answer["problem"] is None and answer["state"]["is_profiling"]
    key, body = profile_of(served, run)
    assert (body.steps, body.asked_by) == (3, "the HTTP API")
    sync = next(finding for finding in body.findings if finding.kind == "host_sync")
    assert sync.value == 30 and "trained_until_told.py" in sync.message
    trace = json.loads(gzip.decompress(call(served, f"/api/v1/runs/{run}/profiles/{key}/trace")))
    assert "aten::addmm" in {event["name"] for event in trace["traceEvents"]}


@pytest.mark.browser
@pytest.mark.capability(45, 46)
def test_profile_from_the_page_shows_tables_and_gives_the_trace(page: Page, served: Served, run: str) -> None:
    ask(served, run, {"do": "state"})
    page.goto(served.server.address)
    page.locator("#tab-profile").click()
    page.locator("#profile-steps").fill("2")
    page.get_by_role("button", name="Profile", exact=True).click()
    expect(page.locator("#profile-said")).to_contain_text("next 2 steps are profiled")
    section = page.locator("#documents-profile")
    expect(section).to_have_count(1)
    expect(section.get_by_role("cell", name="aten::addmm", exact=True)).to_be_visible()
    expect(section).to_contain_text("30 elements per step are read one by one")
    with page.expect_download() as download:
        section.get_by_role("link", name="Download the trace").click()
    events = json.loads(gzip.decompress(Path(download.value.path()).read_bytes()))["traceEvents"]
    assert "aten::addmm" in {event["name"] for event in events}
