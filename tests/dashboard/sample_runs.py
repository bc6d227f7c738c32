"""Journals as a training process would write them: a small model, a loss, gradient norms, events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from sample_events import RUN, nan_event, spike_event

from probe.delivery.journal.journal import JournalWriter
from probe.delivery.journal.run_json import write_run_json
from probe.wire import (
    Event,
    Frame,
    LayerInfo,
    Layout,
    Member,
    ParameterInfo,
    Record,
    RunEnd,
    RunStart,
    encode,
)
from probe.wire.columns import pack_column

LAYERS = ("embedding", "blocks.3", "head")


def run_start(
    run: str = RUN,
    *,
    name: str = "train.py",
    time: float = 1_700_000_000.0,
    group: str = "",
    model: str = "net",
) -> RunStart:
    return RunStart(
        run=run,
        rank=0,
        incarnation=1,
        name=name,
        host="box",
        pid=7,
        time=time,
        versions={"torch": "2.13.0"},
        group=group,
        model=model,
    )


def layout(layers: Sequence[str] = LAYERS) -> Layout:
    return Layout(
        layout=0,
        model="net",
        parameters=[
            ParameterInfo(name=f"{name}.weight", shape=[4, 4], dtype="float32", layer=index)
            for index, name in enumerate(layers)
        ],
        layers=[LayerInfo(name=name, type="Linear") for name in layers],
    )


def frame(step: int, *, layers: Sequence[str] = LAYERS, nan_at: int | None = 400) -> Frame:
    """A falling loss and steady norms; at `nan_at` everything is NaN."""
    bad = step == nan_at
    norms = np.full(len(layers), np.nan if bad else 1.0 + 0.1 * np.sin(step / 20)) * np.arange(
        1, len(layers) + 1
    )
    scalars = {
        "loss": float("nan") if bad else 3.0 / (1 + step / 100),
        "grad_norm": float(np.linalg.norm(norms)),
        "process_rss_bytes": 5.0e8 + 1e5 * step,
        "system_used_bytes": 4.0e9,
    }
    return Frame(
        step=step,
        time=1_700_000_000.0 + step * 0.1,
        scalars=scalars,
        columns=[pack_column("grad_norm", norms)],
    )


def write_run(
    spool: Path,
    run: str = RUN,
    *,
    events: Sequence[Event] | None = None,
    steps: int = 0,
    layers: Sequence[str] = LAYERS,
    name: str = "train.py",
    time: float = 1_700_000_000.0,
    group: str = "",
    model: str = "net",
) -> Path:
    """Write one finished run and return its folder."""
    folder = spool / run
    journal = JournalWriter(folder / "0-1", run=run, writer="0-1")
    start = run_start(run, name=name, time=time, group=group, model=model)
    write_run_json(folder, start)
    found = [nan_event(), spike_event()] if events is None else events
    records: list[Record] = [
        start,
        layout(layers),
        *found,
        RunEnd(time=time + 90, step=steps or None, outcome="finished"),
    ]
    for record in records:
        journal.append("events", encode(record))
    if steps:
        journal.append_many("metrics", [encode(frame(step, layers=layers)) for step in range(steps)])
    journal.close()
    return folder


def write_models(
    spool: Path, run: str, losses: Sequence[Sequence[float]], *, events: Sequence[Event] = ()
) -> Path:
    """Write a run that made several models one after the other, by the loss of each of their steps."""
    folder = spool / run
    journal = JournalWriter(folder / "0-1", run=run, writer="0-1")
    write_run_json(folder, run_start(run))
    for member, values in enumerate(losses):
        number: Member = member or msgspec.UNSET
        start = msgspec.structs.replace(run_start(run), member=number, config={"lr": str(member)})
        described = msgspec.structs.replace(layout(), layout=member, member=number)
        for record in (start, described):
            journal.append("events", encode(record))
        for step, loss in enumerate(values):
            made = msgspec.structs.replace(frame(step), layout=member, member=member, scalars={"loss": loss})
            journal.append("metrics", encode(made))
    for event in events:
        journal.append("events", encode(event))
    journal.close()
    return folder
