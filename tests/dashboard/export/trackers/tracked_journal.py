"""A run for the tests of trackers: a journal on disk, and what was written into it, as plain numbers."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import msgspec
import pytest
from sample_events import nan_event, spike_event
from sample_runs import layout, run_start

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_json import write_run_json
from probe.wire import Frame, Record, RunEnd, encode

STEPS = 30
RUN = "run-a"
ODD_NAME = "log/acc (%) <b>"
BEGAN = 1_700_000_000.0


def expected() -> dict[str, dict[int, float]]:
    """Series -> step -> value, NaN at step 7 and infinite at 8; accuracy comes at every fifth step."""
    loss = {step: 3.0 / (1 + step / 7) for step in range(STEPS)}
    loss |= {7: math.nan, 8: math.inf}
    return {
        "loss": loss,
        "grad_norm": {step: 0.1 + step for step in range(STEPS)},
        ODD_NAME: {step: step / 3 for step in range(0, STEPS, 5)},
    }


def time_of(step: int) -> float:
    return BEGAN + 0.25 * step


def write_tracked_run(spool: Path, *, has_ended: bool = True, rank: int = 0) -> Path:
    """Write the run, or a rank of it, with two events, one of them past the last step."""
    start = msgspec.structs.replace(run_start(RUN), rank=rank, config={"lr": "0.001", "batch|size": "32"})
    events = [
        msgspec.structs.replace(nan_event(), rank=rank, step=7, time=time_of(7)),
        msgspec.structs.replace(spike_event(), rank=rank, step=STEPS + 3, time=time_of(STEPS + 3)),
    ]
    records: list[Record] = [start, layout(), *events]
    if has_ended:
        records.append(RunEnd(time=time_of(STEPS), step=STEPS - 1, outcome="finished"))
    frames = [
        Frame(
            step=step,
            time=time_of(step),
            scalars={name: values[step] for name, values in expected().items() if step in values},
        )
        for step in range(STEPS)
    ]
    write_run_json(spool / RUN, start)
    return _append(spool / RUN, f"{rank}-1", records, frames)


def go_on_with_tracked_run(folder: Path) -> None:
    """As many steps again, with a second spike, and the end."""
    steps = range(STEPS, 2 * STEPS)
    frames = [Frame(step=step, time=time_of(step), scalars={"loss": 1.0 / step}) for step in steps]
    spike = spike_event(STEPS + 9, time=time_of(STEPS + 9))
    end = RunEnd(time=time_of(2 * STEPS), step=2 * STEPS - 1, outcome="finished")
    _append(folder, "0-1", [spike, end], frames)


def restart_tracked_run(folder: Path, *, first: int) -> None:
    """Train from a checkpoint again, with another learning rate, up to the step that was the last."""
    start = msgspec.structs.replace(
        run_start(RUN), incarnation=2, time=time_of(1000), config={"lr": "0.01", "batch|size": "32"}
    )
    frames = [
        Frame(step=step, time=time_of(1000 + step), scalars={"loss": 0.5}) for step in range(first, STEPS)
    ]
    _append(folder, "0-2", [start, layout()], frames)


def _append(folder: Path, writer: str, records: list[Record], frames: list[Frame]) -> Path:
    journal = JournalWriter(folder / writer, run=RUN, writer=writer)
    for record in records:
        journal.append("events", encode(record))
    journal.append_many("metrics", [encode(frame) for frame in frames])
    journal.close()
    return folder


def require(package: str) -> None:
    """Skip where a tracker is not installed; in the environment of `make trackers` it has to be."""
    if importlib.util.find_spec(package) is None:
        if Path(sys.prefix).name == "trackers":
            pytest.fail(f"{package} is missing in {sys.prefix}")
        pytest.skip(f"{package} is not installed; make trackers runs this with it")
