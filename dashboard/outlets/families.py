"""What metrics say of the store, the collector and the outlets, as families of samples, in no format yet.

`exposition.py` writes them for Prometheus, `otlp_messages.py` for OpenTelemetry. Read on threads of routes
and on that of OTLP. How many there are is bounded: by `MOST_RUNS` runs, `MOST_RANKS` ranks of each, and the
known kinds of events.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np

from probe import __version__
from probe.wire import KINDS, SEVERITIES, Event

from ..ingest.collector_status import CollectorStatus
from ..store.protocol import RankScalars, RunSummary, StepRange, Store
from .status import OutletStatus

MOST_RUNS: Final = 20
"""Runs that are written now come first, then the newest."""
MOST_RANKS: Final = 64
"""Of each run, the lowest."""
MOST_CHARACTERS: Final = 200
"""Of a label's value: names come from trainings."""
LIVE_STATES: Final = ("running", "silent")
_BACK_STEPS: Final = 512
"""How far back the newest value of a series may lie."""
_SAW_NAN, _SAW_INF = 2, 4

Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One number; NaN and infinity are what the training had."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one metric."""

    name: str
    """Parts joined by dots, as in OpenTelemetry."""
    kind: Literal["gauge", "counter"]
    unit: Literal["", "s"]
    text: str
    samples: list[Sample] = field(default_factory=list)

    def add(self, value: float, **labels: object) -> None:
        """Add a sample."""
        texts = tuple((name, str(value)[:MOST_CHARACTERS]) for name, value in labels.items())
        self.samples.append(Sample(texts, value))


SERIES: Final = {
    "loss": Family("nanscope.loss", "gauge", "", "Loss of the newest step that has one."),
    "grad_norm": Family("nanscope.grad_norm", "gauge", "", "Global L2 norm of the newest gradients."),
    "step_time_s": Family("nanscope.step.time", "gauge", "s", "Wall-clock time of the newest step."),
}
"""Series of the store -> the family that has its newest value; these ones stay empty."""


@dataclass(frozen=True, slots=True)
class _RunNumbers:
    """What is read of a run and stays as it is until the run's revision changes."""

    newest: dict[str, dict[int, float]]
    """Series -> rank -> its newest value."""
    events: Counter[tuple[str, str]]
    """(severity, kind) -> events."""


class FamilyReader:
    """Reads the families; thread-safe. What has not changed since the last reading is not read again.

    Args:
        store: Has the runs.
        collector: Gives the state of the way in.
        outlets: Give the state of the other outlets.
    """

    def __init__(
        self,
        store: Store,
        *,
        collector: Callable[[], CollectorStatus],
        outlets: Callable[[], Sequence[OutletStatus]] = tuple,
    ) -> None:
        self._store, self._collector, self._outlets = store, collector, outlets
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, _RunNumbers]] = {}

    def outlets(self) -> Sequence[OutletStatus]:
        """Return the state of the other outlets."""
        return self._outlets()

    def read(self) -> list[Family]:
        """Return all families, those without a sample left out.

        Raises:
            DashboardError: the store cannot answer.
        """
        with self._lock:
            everything = self._store.runs()
            chosen = chosen_runs(everything)
            numbers = {run.run: self._numbers(run) for run in chosen}
            self._known = {run: entry for run, entry in self._known.items() if run in numbers}
        families = [
            *_of_runs(chosen, left_out=len(everything) - len(chosen)),
            *_of_series(numbers),
            *_events(numbers),
            *_delivery(self._store, chosen),
            *_of_collector(self._collector()),
            *_of_outlets(self._outlets()),
        ]
        return [family for family in families if family.samples]

    def _numbers(self, run: RunSummary) -> _RunNumbers:
        revision = self._store.revision(run.run)
        known = self._known.get(run.run)
        if known is None or known[0] != revision:
            numbers = _RunNumbers(_newest(self._store, run), count_events(self._store.events(run.run)))
            known = self._known[run.run] = (revision, numbers)
        return known[1]


def chosen_runs(runs: Sequence[RunSummary]) -> list[RunSummary]:
    """Return those that are written now, and others until there are `MOST_RUNS`, each newest first."""
    ended = [run for run in runs if not is_live(run)]
    return [*(run for run in runs if is_live(run)), *ended][:MOST_RUNS]


def is_live(run: RunSummary) -> bool:
    """Whether a rank of the run is still written."""
    return any(rank.state in LIVE_STATES for rank in run.ranks)


def count_events(events: Iterable[Event]) -> Counter[tuple[str, str]]:
    """Return (severity, kind) -> events; a kind that is not one of `KINDS` counts as `other`."""
    return Counter((event.severity, event.kind if event.kind in KINDS else "other") for event in events)


def _newest(store: Store, run: RunSummary) -> dict[str, dict[int, float]]:
    lasts = [rank.last_step for rank in run.ranks if rank.last_step is not None]
    if not lasts:
        return {}
    steps = StepRange(first=max(0, max(lasts) - _BACK_STEPS + 1))
    return newest_values(store.rank_scalars(run.run, list(SERIES), steps, _BACK_STEPS))


def newest_values(scalars: RankScalars) -> dict[str, dict[int, float]]:
    """Return series -> rank -> value of its newest column: NaN or infinity where a step was not finite."""
    found: dict[str, dict[int, float]] = {}
    for name, series in scalars.series.items():
        found[name] = {}
        for row, rank in enumerate(scalars.ranks):
            measured = np.flatnonzero(series.flags[row])
            if len(measured):
                last = int(measured[-1])
                flags = int(series.flags[row, last])
                bad = math.nan if flags & _SAW_NAN else math.inf if flags & _SAW_INF else None
                found[name][rank] = float(series.mean[row, last]) if bad is None else bad
    return found


def _of_runs(runs: Sequence[RunSummary], *, left_out: int) -> list[Family]:
    build = Family("nanscope.build.info", "gauge", "", "Always 1; the version stands in its label.")
    build.add(1, version=__version__)
    shown = Family("nanscope.runs", "gauge", "", "Runs that these metrics show.")
    shown.add(len(runs))
    hidden = Family("nanscope.runs.left_out", "gauge", "", "Older runs of the store that they do not show.")
    hidden.add(left_out)
    info = Family("nanscope.run.info", "gauge", "", "Always 1; what the run is called stands in its labels.")
    state = Family("nanscope.rank.state", "gauge", "", "Always 1; the state of the rank stands in its label.")
    step = Family("nanscope.step", "gauge", "", "Newest step.")
    time = Family("nanscope.step.timestamp", "gauge", "s", "UNIX time of the newest step.")
    for run in runs:
        info.add(1, run=run.run, name=run.name, model=run.start.model, group=run.start.group)
        for rank in sorted(run.ranks, key=lambda one: one.rank)[:MOST_RANKS]:
            state.add(1, run=run.run, rank=rank.rank, state=rank.state)
            if rank.last_step is not None:
                step.add(rank.last_step, run=run.run, rank=rank.rank)
            if rank.last_time is not None:
                time.add(rank.last_time, run=run.run, rank=rank.rank)
    return [build, shown, hidden, info, state, step, time]


def _of_series(numbers: dict[str, _RunNumbers]) -> list[Family]:
    families = []
    for series, empty in SERIES.items():
        family = Family(empty.name, empty.kind, empty.unit, empty.text)
        for run, known in numbers.items():
            for rank, value in sorted(known.newest.get(series, {}).items())[:MOST_RANKS]:
                family.add(value, run=run, rank=rank)
        families.append(family)
    return families


def _events(numbers: dict[str, _RunNumbers]) -> list[Family]:
    """By severity from 0 on, so that a rate sees the first one; by kind of those that there are."""
    text = "Events: an episode is one, however long it lasts"
    totals = Family("nanscope.events", "counter", "", f"{text}.")
    kinds = Family("nanscope.events.by_kind", "counter", "", f"{text}; by kind.")
    for run, known in numbers.items():
        for each in SEVERITIES:
            count = sum(count for (name, _), count in known.events.items() if name == each)
            totals.add(count, run=run, severity=each)
        for (severity, kind), count in sorted(known.events.items()):
            kinds.add(count, run=run, severity=severity, kind=kind)
    return [totals, kinds]


def _delivery(store: Store, runs: Sequence[RunSummary]) -> list[Family]:
    """Per run and stream, of all its writers together: their number is not bounded."""
    stored = Family("nanscope.records.stored", "counter", "", "Records that the store has.")
    gaps = Family("nanscope.records.missing", "counter", "", "Records that were gone before they were sent.")
    dropped = Family("nanscope.records.dropped", "counter", "", "Records that arrived and could not be read.")
    lost = Family("nanscope.steps.lost", "counter", "", "Steps that a trainer has lost before it wrote them.")
    for run in runs:
        sums: Counter[tuple[str, str]] = Counter()
        for position in store.positions(run.run):
            stream: str = position.key.stream
            sums[stream, "stored"] += position.stored
            sums[stream, "gaps"] += position.gaps
            sums[stream, "dropped"] += position.dropped
        for name in sorted({name for name, _ in sums}):
            stored.add(sums[name, "stored"], run=run.run, stream=name)
            gaps.add(sums[name, "gaps"], run=run.run, stream=name)
            dropped.add(sums[name, "dropped"], run=run.run, stream=name)
        lost.add(sum(rank.lost_before_write for rank in run.ranks), run=run.run)
    return [stored, gaps, dropped, lost]


def _of_collector(status: CollectorStatus) -> list[Family]:
    helpers = Family("nanscope.ingest.helpers", "gauge", "", "Helpers of trainings that are connected.")
    helpers.add(status.helpers)
    batches = Family("nanscope.ingest.batches", "counter", "", "Batches of records that were received.")
    batches.add(status.batches)
    malformed = Family("nanscope.ingest.malformed", "counter", "", "Messages that could not be read.")
    malformed.add(status.malformed_messages + status.stranger_messages)
    refused = Family("nanscope.ingest.refused", "counter", "", "Helpers that were refused.")
    refused.add(status.refused_handshakes)
    takes = Family("nanscope.ingest.store_up", "gauge", "", "1 while the store takes data, else 0.")
    takes.add(int(status.store_problem is None))
    return [helpers, batches, malformed, refused, takes]


def _of_outlets(outlets: Sequence[OutletStatus]) -> list[Family]:
    sent = Family("nanscope.outlet.sent", "counter", "", "Requests that the other side has taken.")
    failed = Family("nanscope.outlet.failed", "counter", "", "Requests that were abandoned.")
    dropped = Family(
        "nanscope.outlet.dropped", "counter", "", "Events that were never sent: too many waited."
    )
    waiting = Family("nanscope.outlet.waiting", "gauge", "", "Events waiting to be sent.")
    for outlet in outlets:
        sent.add(outlet.sent, outlet=outlet.name)
        failed.add(outlet.failed, outlet=outlet.name)
        dropped.add(outlet.dropped, outlet=outlet.name)
        waiting.add(outlet.waiting, outlet=outlet.name)
    return [sent, failed, dropped, waiting]
