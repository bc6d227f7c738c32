"""What a training records that C follows, beside the same one that goes the slow way."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from armed_training import Training, watched_training
from journals import Journal
from run_numbers import run_of
from torch import Tensor

from probe.wire import Event, Frame

OWN = ("step_time_", "probe_", "process_", "system_")
"""Clock readings, memory and the probe's own cost: no two runs have the same."""


def numbers(frames: list[Frame], *, without: tuple[str, ...] = ()) -> dict[int, dict[str, Any]]:
    """All that frames say of each step, without what no two runs have in common."""
    steps: dict[int, dict[str, Any]] = {}
    for frame in frames:
        known = steps.setdefault(frame.step, {"layout": frame.layout})
        left_out = (*OWN, *without)
        known |= {name: repr(value) for name, value in frame.scalars.items() if not name.startswith(left_out)}
        known |= {column.name: column.data for column in frame.columns}
        known |= {column.name: msgspec.msgpack.encode(column) for column in frame.parameter_columns}
        if frame.columns:
            known |= {"missing": frame.missing, "stage": frame.stage}
    return steps


def said(events: list[Event]) -> list[tuple[Any, ...]]:
    """What events say, without times and how long a replay took."""
    return [
        (
            event.kind,
            event.step,
            event.micro_step,
            event.severity,
            event.subject,
            re.sub(r"\d+ ms|/\S+/bundles/\w+", "...", event.message),
            event.origin,
            event.stacks.forward,
            event.stacks.backward,
            event.propagated_to,
            event.count,
            event.last_step,
            event.ended,
        )
        for event in events
    ]


Act = Callable[[Training], object]


def recorded(tmp_path: Path, act: Act, *, in_c: bool, **options: Any) -> tuple[Journal, list[Tensor]]:
    """What a training records in which `act` is done while C follows it, and its last weights."""
    spool = tmp_path / ("in_c" if in_c else "slow")
    with watched_training(in_c=in_c, spool=spool, **options) as training:
        act(training)
        weights = [parameter.detach().clone() for parameter in training.model.parameters()]
    return run_of(spool), weights


def assert_same(tmp_path: Path, act: Act, **options: Any) -> Journal:
    """Have both ways record the same; returns one of the journals."""
    both = [recorded(tmp_path, act, in_c=in_c, **options) for in_c in (True, False)]
    (one, mine), (other, theirs) = both
    assert all(
        np.array_equal(a.numpy(), b.numpy(), equal_nan=True) for a, b in zip(mine, theirs, strict=True)
    )
    assert numbers(one.frames) == numbers(other.frames)
    assert said(one.latest_events) == said(other.latest_events)
    return one
