"""What a tracker is given of one rank of a run: its facts, its numbers step by step, its events."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from probe.wire import Event
from probe.wire.event_texts import headline

from ...errors import DashboardError, UnknownRunError
from ...page.views.event_facts import event_order
from ...store.protocol import RankSummary, RunSummary, StepRange, Store

STEPS_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """All scalars of a step; NaN and infinity are what the training had."""

    step: int
    time: float
    """UNIX seconds."""
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """One rank of one run."""

    run: RunSummary
    rank: RankSummary
    events: tuple[Event, ...]
    store: Store

    @property
    def name(self) -> str:
        """What the run is called; of a higher rank with its number."""
        name = self.run.name or self.run.run
        return f"{name} rank {self.rank.rank}" if self.rank.rank else name

    @property
    def has_failed(self) -> bool:
        """Whether it has ended, and not in order."""
        return self.rank.state in ("exception", "killed")

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.rank.state not in ("running", "silent")

    def parameters(self) -> dict[str, str]:
        """What the training was started with."""
        return dict(self.run.start.config)

    def facts(self) -> dict[str, str]:
        """What the run says of itself beside its configuration; empty ones are left out."""
        start = self.run.start
        facts = {
            "run": self.run.run,
            "rank": str(self.rank.rank),
            "model": start.model,
            "host": start.host,
            "git_commit": start.git_commit or "",
            "state": self.rank.state,
            "world_size": str(start.world_size),
            **{f"version.{name}": version for name, version in start.versions.items()},
        }
        return {name: text for name, text in facts.items() if text}

    def steps(self) -> Iterator[StepNumbers]:
        """Every stored step that has a number, in order."""
        names = self.store.scalar_names(self.run.run, self.rank.rank)
        first = 0
        while (begin := self._next(names, first)) is not None:
            first = begin + STEPS_AT_ONCE
            yield from _by_step(self._read(names, StepRange(first=begin, end=first), STEPS_AT_ONCE))

    def _next(self, names: list[str], first: int) -> int | None:
        """Return a step at or before the next stored one; None where none follows."""
        rest = self._read(names, StepRange(first=first), 1)
        return max(first, int(rest["step"].min())) if len(rest) else None

    def _read(self, names: list[str], steps: StepRange, points: int) -> pd.DataFrame:
        return self.store.scalars(self.run.run, self.rank.rank, names, steps, points)


def tracked_run(store: Store, run: str, *, rank: int) -> TrackedRun:
    """Find one rank of a run.

    Raises:
        UnknownRunError: the store has no such run, or the run no such rank.
    """
    for summary in store.runs():
        if summary.run == run:
            for known in summary.ranks:
                if known.rank == rank:
                    events = tuple(sorted(store.events(run, rank), key=event_order))
                    return TrackedRun(run=summary, rank=known, events=events, store=store)
            there = ", ".join(str(known.rank) for known in summary.ranks)
            raise UnknownRunError(f"Run {run} has no rank {rank}; it has {there or 'none'}.")
    raise UnknownRunError(f"The store has no run {run}.")


def _by_step(rows: pd.DataFrame) -> Iterator[StepNumbers]:
    bad = np.where(rows["nan"] > 0, np.nan, np.inf)
    value = np.where((rows["nan"] > 0) | (rows["inf"] > 0), bad, rows["mean"])
    found: dict[int, StepNumbers] = {}
    for step, time, name, number in zip(
        rows["step"].tolist(), rows["time"].tolist(), rows["name"].tolist(), value.tolist(), strict=True
    ):
        entry = found.setdefault(step, StepNumbers(step=int(step), time=float(time), values={}))
        entry.values[str(name)] = number
    return (found[step] for step in sorted(found))


def events_by_kind(events: tuple[Event, ...]) -> Mapping[str, str]:
    """Return kind -> how many there are, and what the first of them says."""
    counts = Counter(event.kind for event in events)
    first = {event.kind: event for event in reversed(events)}
    return {
        kind: f"{count:,}, first at step {first[kind].step:,}: {headline(first[kind])}"
        for kind, count in counts.items()
    }


def require_package(package: str, *, extra: str) -> None:
    """Say which extra brings a package that is not there.

    Raises:
        DashboardError: it cannot be imported.
    """
    if importlib.util.find_spec(package) is None:
        raise DashboardError(
            f"--format {extra} needs the package {package}, which is not installed: "
            f"pip install 'nanscope[{extra}]'"
        )
