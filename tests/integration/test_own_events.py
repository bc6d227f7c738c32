"""Events, errors and tensor facts from the front door: `dashboard run`, `dashboard events`, the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from page_fixtures import Served, until
from playwright.sync_api import Page, expect

from dashboard.ingest.spool import ingest_spool

SCRIPT = Path(__file__).with_name("scripts") / "own_events.py"
DASHBOARD = [sys.executable, "-m", "dashboard"]


class Recorded:
    """A script's run under `dashboard run`, and what `dashboard events --json` says of it."""

    def __init__(self, folder: Path) -> None:
        self.spool = folder / "spool"
        environment = {**os.environ, "NANSCOPE_SPOOL": str(self.spool), "NANSCOPE_CONNECT": ""}
        command = [*DASHBOARD, "run", str(SCRIPT)]
        self.ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        told = subprocess.run(
            [*DASHBOARD, "events", str(self.spool), "--json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.events: list[dict[str, Any]] = [json.loads(line) for line in told.stdout.splitlines()]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("own_events"))


@pytest.mark.capability(15, 58)
def test_own_events_arrive_with_kind_message_time_and_data(recorded: Recorded) -> None:
    first, second = recorded.of_kind("custom")
    assert (first["message"], first["severity"], first["step"]) == ("two equal", "warning", 1)
    assert first["data"] == {"where": "batch 3", "nested": {"none": None, "n": 2}}
    assert (second["severity"], second["data"]) == ("info", {"share": "NaN"})
    assert first["id"] != second["id"] and 0 <= second["time"] - first["time"] < 60


@pytest.mark.capability(65)
def test_caught_error_is_recorded_with_severity_category_and_context(recorded: Recorded) -> None:
    (event,) = (event for event in recorded.of_kind("exception") if event["subject"] == "OSError")
    assert event["severity"] == "critical"
    assert event["data"] == {"category": "data", "context": {"shard": 7}}
    assert event["stacks"]["training_loop"][-1]["function"] == "load"
    parts = event["evidence"]["tensors"][0]
    assert (parts["role"], parts["name"], parts["shape"], parts["mean"]) == ("local", "parts", [3, 2], 7.0)


@pytest.mark.capability(8)
def test_regions_record_what_leaves_them_once_and_let_it_pass(recorded: Recorded) -> None:
    events = {event["subject"]: event for event in recorded.of_kind("exception")}
    assert events["KeyError"]["data"] == {"region": "epoch/validation"}
    assert events["KeyError"]["severity"] == "warning"
    assert events["RuntimeError"]["data"] == {"region": "saving"}
    assert events["RuntimeError"]["severity"] == "critical"  # it left the script
    assert len(recorded.of_kind("exception")) == 3
    assert recorded.ended.returncode == 1 and "RuntimeError: the disk is full" in recorded.ended.stderr


@pytest.mark.capability(11, 12)
def test_nan_has_stacks_of_both_directions_and_facts_of_its_tensors(recorded: Recorded) -> None:
    """Anomaly detection is on for every backward without a word in the script."""
    (event,) = recorded.of_kind("nonfinite_loss")
    assert (event["origin"]["phase"], event["origin"]["op"], event["step"]) == ("forward", "sqrt", 4)
    assert "torch.sqrt(hidden" in event["stacks"]["forward"][-1]["code"]
    assert event["stacks"]["training_loop"][-1]["function"] == "main"
    read, made = event["evidence"]["tensors"]
    assert (read["role"], read["shape"], read["dtype"], read["device"]) == ("input", [5, 8], "float32", "cpu")
    assert (read["nan"], read["min"]) == (0, pytest.approx(-0.5)) and read["min"] < read["mean"] < read["max"]
    assert (made["role"], made["shape"], made["mean"]) == ("output", [5, 8], "NaN")
    assert made["nan"] > 0 and made["finite_min"] >= 0
    assert "float32" not in event["message"]


@pytest.mark.capability(11)
def test_bad_derivative_has_the_line_of_its_forward_and_the_stack_of_its_backward(recorded: Recorded) -> None:
    (event,) = recorded.of_kind("nonfinite_gradient")
    assert (event["origin"]["phase"], event["origin"]["op"]) == ("backward", "SqrtBackward0")
    assert "torch.sqrt(hidden" in event["stacks"]["forward"][-1]["code"]
    assert "loss.backward()" in event["stacks"]["backward"][-1]["code"]
    assert any(one["zero"] == 1 and one["nan"] == 0 for one in event["evidence"]["tensors"])


@pytest.mark.browser
@pytest.mark.capability(11, 15)
def test_panel_shows_tensors_and_data_as_tables(page: Page, served: Served, recorded: Recorded) -> None:
    ingest_spool(served.server.store, recorded.spool)
    served.server.notify()
    run = recorded.events[0]["run"]
    nan, own = recorded.of_kind("nonfinite_loss")[0], recorded.of_kind("custom")[0]
    page.goto(f"{served.server.address}&run={run}&event={nan['id']}")
    row = page.locator(".event-tensors tbody tr", has_text="output 0")
    expect(row).to_contain_text("5×8")
    expect(row).to_contain_text(f"{nan['evidence']['tensors'][1]['nan']}")
    page.goto(f"{served.server.address}&run={run}&event={own['id']}")
    expect(page.locator(".event-data tbody tr", has_text="where")).to_contain_text("batch 3")
    expect(page.locator(".event-data tbody tr", has_text="nested.none")).to_contain_text("null")
    until(page, "document.querySelector('.event-data').scrollWidth <= document.body.clientWidth")
