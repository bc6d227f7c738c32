"""A captured step's bundle, written through a real recorder."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replayed_step import CapturedStep
from torch import Tensor, nn

from probe.delivery.journal.journal_reader import read_stream
from probe.delivery.recorder.recorder import Recorder
from probe.forensics.bundle.black_box import PastBatch
from probe.forensics.bundle.writer import BundleWriter
from probe.forensics.capture import RootCapture
from probe.forensics.replay import Replay
from probe.wire import Event, Frame, Layout, RunStart, decode_record, event_id

RUN = "bundled"


def run_start() -> RunStart:
    return RunStart(run=RUN, rank=0, incarnation=time.time_ns(), name="train.py", host="there", time=1.7e9)


def event_of(
    start: RunStart,
    *,
    step: int = 7,
    kind: str = "nonfinite_loss",
    subject: str = "loss",
    replay: Replay | None = None,
) -> Event:
    identity = event_id(
        run=start.run,
        rank=0,
        incarnation=start.incarnation,
        model="net",
        kind=kind,
        subject=subject,
        step=step,
    )
    return Event(
        id=identity,
        run=start.run,
        rank=0,
        incarnation=start.incarnation,
        model="net",
        step=step,
        time=1.7e9,
        kind=kind,
        severity="critical",
        subject=subject,
        message="NaN first at step 7",
        origin=None if replay is None else replay.origin,
    )


@dataclass(frozen=True, kw_only=True)
class StepAtHand:
    """What the session hands over."""

    root: nn.Module
    captures: Sequence[RootCapture]
    parameters: Mapping[str, nn.Parameter]
    loss: Tensor | None
    stage: str
    no_replay_reason: str | None = None
    frames: Callable[[], Sequence[Frame]] = tuple
    past_batches: Sequence[PastBatch] = ()


def content_of(step: CapturedStep, past_batches: Sequence[PastBatch] = ()) -> StepAtHand:
    return StepAtHand(
        root=step.model,
        captures=step.captures,
        parameters=dict(step.model.named_parameters()),
        loss=None if step.loss is None else step.loss.detach(),
        stage="local",
        past_batches=past_batches,
    )


class Bundles:
    """Writes bundles of one run."""

    def __init__(self, spool: Path, **options: object) -> None:
        self.start = run_start()
        self.recorder = Recorder(spool, self.start, connect="")
        self.recorder.event(Layout(layout=0, model="net", parameters=[], layers=[]))
        for number in range(100):
            scalars = {"loss": 1.0 + number, "lr": 0.1, "lr/head": 0.2, "amp_scale": 8.0}
            self.recorder.frame(Frame(step=number, time=1.7e9 + number, scalars=scalars))
        self.recorder.flush()
        self.writer = BundleWriter(self.recorder, self.start, **options)  # type: ignore[arg-type]

    def write(self, step: CapturedStep | None, *, number: int = 7, **facts: Any) -> tuple[str, Path]:
        """Write one; return what the event says in the end, and where the bundle is, if there is one."""
        event = event_of(self.start, step=number, **facts)
        told = self.writer.attach(event, None if step is None else content_of(step))
        self.recorder.event(told)
        self.recorder.beside.wait()
        self.recorder.flush()
        states = [decode_record(data) for _, data in read_stream(self.recorder.folder, "events")]
        newest = next(one for one in reversed(states) if isinstance(one, Event) and one.id == event.id)
        line = newest.message.removeprefix(event.message).strip()
        return line, self.recorder.folder.parent / "bundles" / event.id

    def close(self) -> None:
        self.recorder.close(outcome="finished", last_step=7)


def bundle_of(step: CapturedStep, spool: Path, **facts: Any) -> Path:
    """Write a step's bundle and return its folder; the facts are of its event."""
    bundles = Bundles(spool)
    try:
        return bundles.write(step, **facts)[1]
    finally:
        bundles.close()
