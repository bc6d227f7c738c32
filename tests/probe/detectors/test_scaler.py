"""A GradScaler that skips update after update: from which skip on it is no healthy overflow any more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from detector_series import observe_norms
from run_numbers import run_of
from torch import nn

import probe
from probe.detectors.base import Finding
from probe.detectors.scaler import CRITICAL_AFTER, WARN_AFTER, ScalerWatch

OVERFLOW = Finding(
    kind="nonfinite_gradient",
    severity="critical",
    subject="0.weight",
    message="",
    value=float("nan"),
    threshold=None,
)


def severities(skips: list[bool], *, scales: list[float | None] | None = None) -> list[str]:
    """What each step's overflow is said to be; `-` of an update that was made."""
    watch, said = ScalerWatch(), []
    for step, is_skipped in enumerate(skips):
        scale = 64.0 if scales is None else scales[step]
        found = watch.judge(
            [OVERFLOW] if is_skipped else [], observe_norms(step, [float("nan")]), scale=scale
        )
        said.append(found[0].severity if found else "-")
    return said


def test_skips_in_a_row_become_a_warning_and_then_critical() -> None:
    said = severities([True] * (CRITICAL_AFTER + 1))
    assert said.index("warning") == WARN_AFTER - 1
    assert said.index("critical") == CRITICAL_AFTER - 1
    assert set(said[: WARN_AFTER - 1]) == {"info"}
    assert said[-1] == "critical"


@pytest.mark.parametrize(
    "skips",
    [
        ([True] * (WARN_AFTER - 1) + [False]) * 20,
        [True, False] * 100,
    ],
    ids=["bursts", "every other"],
)
def test_skips_between_updates_stay_information(skips: list[bool]) -> None:
    assert set(severities(skips)) == {"info", "-"}


def test_skips_above_the_default_scale_do_not_count() -> None:
    down = [2.0**power for power in range(40, 16, -1)]
    assert set(severities([True] * len(down), scales=list(down))) == {"info"}
    assert severities([True] * 40, scales=[*down, *[None] * 16])[-1] == "warning"


def test_updates_that_were_judged_in_a_row_end_the_row() -> None:
    watch = ScalerWatch()
    for step in range(3 * WARN_AFTER):
        if step % (WARN_AFTER - 1) == 0:
            watch.note_updates()
        (found,) = watch.judge([OVERFLOW], observe_norms(step, [float("nan")]), scale=None)
        assert (found.kind, found.severity) == ("amp_overflow", "info")


@pytest.mark.usefixtures("one_thread", "nothing_switched_off")
def test_gradients_that_no_scale_makes_finite_are_the_first_fault_of_the_run(spool: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    with probe.watch(model, optimizer):
        for _ in range(CRITICAL_AFTER + 5):
            out = model(torch.randn(4, 6))
            loss = out.pow(2).mean() + (out - out.detach()).pow(2).sqrt().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    faults = [event for event in run_of(spool).latest_events if event.kind == "amp_overflow"]
    assert [(event.severity, event.step) for event in faults] == [
        ("info", 0),
        ("warning", WARN_AFTER - 1),
        ("critical", CRITICAL_AFTER - 1),
    ]
    lasting = faults[1]
    assert "skipped 10 updates in a row, since step 0" in lasting.message
    assert lasting.origin is not None and lasting.origin.op == "SqrtBackward0"
    assert not any("normal at the start" in line for line in lasting.advice)
    worse = [event for event in run_of(spool).latest_events if event.severity == "critical"]
    assert [event.kind for event in worse] == ["amp_overflow"]
