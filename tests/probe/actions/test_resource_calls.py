"""`monitor_resources` and `resource_limits`: real readings, what is above a limit, and the events."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from small_training import seeded_model, train

import probe
from probe.delivery.utilisation import UtilisationReader
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


@pytest.mark.capability(78)
def test_what_is_above_a_limit_is_named_logged_and_an_event(
    spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = seeded_model()
    with probe.watch(model):
        for _ in range(2):
            used = probe.monitor_resources(cpu_percent=None, memory_percent=0.001, gpu_memory_mb=10**9)
    assert used["above"] == ["memory_percent"] and 0.001 < used["memory_percent"] <= 100
    assert 0 <= used["cpu_percent"] <= 100 and used["process_memory_mb"] > 50
    assert used["warnings"][0].endswith("% of the machine's memory, above 0.001")
    assert caplog.text.count("High memory usage") >= 2
    events = [event for event in run_of(spool).latest_events if event.kind == "high_resource_use"]
    assert [(event.subject, event.severity, event.evidence.threshold) for event in events] == [
        ("memory_percent", "warning", 0.001)
    ]


def test_nothing_above_is_nothing_said(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    with probe.watch(seeded_model()):
        used = probe.monitor_resources(None, None, None)
    assert (used["above"], used["warnings"]) == ([], [])
    assert "High" not in caplog.text and run_of(spool).latest_events == []


def test_wrong_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="cpu_percent=-1 must be a number"):
        probe.monitor_resources(cpu_percent=-1)


@pytest.mark.capability(78)
def test_limits_of_watch_are_judged_while_training(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    limits = {"system_fraction": None, "cpu_fraction": 1e-6, "readings": 1}
    with probe.watch(model, optimizer, resource_limits=limits) as run:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not _found(spool):
            train(model, optimizer, 20)
            run.flush()
    (event,) = _found(spool)
    assert (event.subject, event.severity, event.evidence.threshold) == ("cpu", "info", 1e-6)


def _found(spool: Path) -> list[Event]:
    return [event for event in run_of(spool).latest_events if event.kind == "high_resource_use"]


def test_wrong_resource_limits_are_refused_at_attach() -> None:
    with pytest.raises(ValueError, match="resource_limits has no 'ram'"):
        probe.watch(seeded_model(), resource_limits={"ram": 0.9})
    with pytest.raises(ValueError, match="cpu_fraction=90 must be a number above 0 and at most 1"):
        probe.watch(seeded_model(), resource_limits={"cpu_fraction": 90})


def test_busy_process_shows_in_both_shares() -> None:
    reader = UtilisationReader()
    assert reader.read().process_cpu is None
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    used = reader.read()
    assert used.process_cpu is not None and used.system_cpu is not None
    assert 0.0 < used.process_cpu <= 1.0 and 0.0 < used.system_cpu <= 1.0
    assert used.gpu is None or 0.0 <= used.gpu <= 1.0


@pytest.mark.capability(63)
def test_use_of_processors_is_a_series(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with probe.watch(model, optimizer) as run:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not _shares(spool):
            train(model, optimizer, 20)
            run.flush()
    assert all(0.0 < share <= 1.0 for share in _shares(spool))


def _shares(spool: Path) -> list[float]:
    name = "process_cpu_fraction"
    return [frame.scalars[name] for frame in run_of(spool).frames if name in frame.scalars]
