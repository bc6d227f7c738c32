"""`ShardedStore`: several ClickHouse servers as one store. A run is whole on one of them, chosen by its id.

Each collector writes to the server that a run belongs to, and to no table that spans servers: there an insert
fails as a whole where one server is away. A server that does not answer holds up its own runs alone.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeVar

import pandas as pd

from probe.wire import Event, Layout, RunStart, StreamKey

from ...errors import DashboardError
from ..protocol import (
    GapRange,
    Heatmap,
    HistogramColumns,
    MagnitudeHistogram,
    RankScalars,
    RankStart,
    RunMark,
    RunSummary,
    StepNote,
    StepRange,
    StoredDocument,
    StreamPosition,
    TensorTrack,
)
from .schema import number_of
from .store import ClickStore

Answer = TypeVar("Answer")
RETRY_S: Final = 2.0
"""How long a server that did not answer a commit is left alone."""
_ALL_STEPS = StepRange()


class _WaitingError(DashboardError):
    """A server has not answered a moment ago."""


class ShardedStore:
    """Durable home of every run on several servers; see `Store` for what the methods mean.

    Args:
        shards: One store for each server, always in the same order: their place decides who has which run.
    """

    def __init__(self, shards: Sequence[ClickStore]) -> None:
        self._shards = tuple(shards)
        self._mine = threading.local()
        self._problems: dict[int, tuple[float, str]] = {}
        """By the number of a shard, what it said when it was asked last, and when."""

    def shard_of(self, run: str) -> int:
        """Return the number of the server that has a run."""
        return number_of("run", run) % len(self._shards)

    def _of(self, run: str) -> ClickStore:
        """The store of a run; inside a view it is looked at as it was when the view first came to it."""
        shard = self._shards[self.shard_of(run)]
        views: dict[int, contextlib.ExitStack] | None = getattr(self._mine, "views", None)
        if views is not None and id(shard) not in views:
            views[id(shard)] = contextlib.ExitStack()
            views[id(shard)].enter_context(shard.view())
        return shard

    def _each(self, ask: Callable[[ClickStore], Answer]) -> list[Answer]:
        """Ask all servers; those that do not answer are left out, and told of by `notice`.

        Raises:
            DashboardError: none of them answers.
        """
        answers: list[Answer] = []
        for number, shard in enumerate(self._shards):
            try:
                answers.append(ask(shard))
            except _WaitingError:
                continue
            except DashboardError as error:
                self._problems[number] = time.monotonic(), str(error)
            else:
                self._problems.pop(number, None)
        if not answers:
            raise DashboardError(next(text for _, text in self._problems.values()))
        return answers

    # -- what `serve` tells

    @property
    def notice(self) -> str | None:
        """What the user must be told about the data; None if nothing."""
        texts = [text for _, text in list(self._problems.values())]
        texts += [notice for shard in self._shards if (notice := shard.notice)]
        return " ".join(text if text.endswith(".") else f"{text}." for text in dict.fromkeys(texts)) or None

    def limit_notices(self) -> list[str]:
        """What runs had too much of, for the page; empty while nothing was left out."""
        return list(dict.fromkeys(text for shard in self._shards for text in shard.limit_notices()))

    def note_journals(self, runs: Collection[str]) -> None:
        """The journals of these runs have been read."""
        for shard in self._shards:
            shard.note_journals(runs)

    # -- delivery

    def position(self, key: StreamKey) -> StreamPosition:
        """See `Store.position`."""
        return self._of(key.run).position(key)

    def refuses(self, key: StreamKey) -> str | None:
        """See `Store.refuses`."""
        return self._of(key.run).refuses(key)

    def positions(self, run: str) -> list[StreamPosition]:
        """See `Store.positions`."""
        return self._of(run).positions(run)

    def generation(self) -> int:
        """See `Store.generation`."""
        return sum(shard.generation() for shard in self._shards)

    def append(
        self, key: StreamKey, first_seq: int, records: list[bytes], *, generation: int | None = None
    ) -> int:
        """See `Store.append`."""
        is_other = generation not in (None, self.generation())
        return self._of(key.run).append(key, first_seq, records, generation=-1 if is_other else None)

    def skip(self, key: StreamKey, first_seq: int, end_seq: int, reason: str) -> int:
        """See `Store.skip`."""
        return self._of(key.run).skip(key, first_seq, end_seq, reason)

    def commit(self) -> dict[StreamKey, int]:
        """Have each server write what is its own; what one refuses stays queued for it."""
        return {key: seq for moved in self._each(self._commit) for key, seq in moved.items()}

    def _commit(self, shard: ClickStore) -> dict[StreamKey, int]:
        failed_at, text = self._problems.get(self._shards.index(shard), (-math.inf, ""))
        if time.monotonic() - failed_at < RETRY_S:
            # It may take seconds to find that it still does not answer, and the others wait meanwhile.
            raise _WaitingError(text)
        return shard.commit()

    def remove_run(self, run: str) -> None:
        """See `Store.remove_run`."""
        self._of(run).remove_run(run)

    def close(self) -> None:
        """Commit what is queued and leave the servers. Idempotent."""
        with contextlib.ExitStack() as closing:
            for shard in self._shards:
                closing.callback(shard.close)

    # -- reading

    def revision(self, run: str | None = None) -> int:
        """See `Store.revision`."""
        if run is not None:
            return self._shards[self.shard_of(run)].revision(run)
        return sum(shard.revision() for shard in self._shards)

    @contextlib.contextmanager
    def view(self) -> Iterator[None]:
        """See `Store.view`; of each server that is asked."""
        if getattr(self._mine, "views", None) is not None:
            yield
            return
        self._mine.views = {}
        with contextlib.ExitStack() as ending:
            ending.callback(self._end_view)
            yield

    def _end_view(self) -> None:
        views, self._mine.views = self._mine.views, None
        with contextlib.ExitStack() as ending:
            for stack in views.values():
                ending.push(stack)

    def runs(self) -> list[RunSummary]:
        """All runs, newest first; without those of a server that does not answer."""
        found = [one for runs in self._each(lambda shard: shard.runs()) for one in runs]
        return sorted(found, key=lambda one: (one.started, one.run), reverse=True)

    def run_start(self, run: str, rank: int = 0) -> RunStart | None:
        """See `Store.run_start`."""
        return self._of(run).run_start(run, rank)

    def starts(self, run: str, rank: int = 0) -> list[RankStart]:
        """See `Store.starts`."""
        return self._of(run).starts(run, rank)

    def layout(self, run: str, rank: int = 0) -> Layout | None:
        """See `Store.layout`."""
        return self._of(run).layout(run, rank)

    def scalar_names(self, run: str, rank: int = 0) -> list[str]:
        """See `Store.scalar_names`."""
        return self._of(run).scalar_names(run, rank)

    def scalars(
        self, run: str, rank: int, names: list[str], steps: StepRange = _ALL_STEPS, max_points: int = 1000
    ) -> pd.DataFrame:
        """See `Store.scalars`."""
        return self._of(run).scalars(run, rank, names, steps, max_points)

    def rank_scalars(
        self, run: str, names: list[str], steps: StepRange = _ALL_STEPS, max_columns: int = 1000
    ) -> RankScalars:
        """See `Store.rank_scalars`."""
        return self._of(run).rank_scalars(run, names, steps, max_columns)

    def heatmap(
        self,
        run: str,
        rank: int,
        statistic: str = "grad_norm",
        steps: StepRange = _ALL_STEPS,
        max_columns: int = 1000,
        unfolded: tuple[str, ...] = (),
    ) -> Heatmap | None:
        """See `Store.heatmap`."""
        return self._of(run).heatmap(run, rank, statistic, steps, max_columns, unfolded)

    def statistic_names(self, run: str, rank: int = 0) -> list[str]:
        """See `Store.statistic_names`."""
        return self._of(run).statistic_names(run, rank)

    def histograms(
        self, run: str, rank: int, subject: str, steps: StepRange = _ALL_STEPS
    ) -> list[MagnitudeHistogram]:
        """See `Store.histograms`."""
        return self._of(run).histograms(run, rank, subject, steps)

    def gradient_stage(self, run: str, rank: int = 0) -> str:
        """See `Store.gradient_stage`."""
        return self._of(run).gradient_stage(run, rank)

    def histogram_columns(
        self, run: str, rank: int, subject: str, steps: StepRange = _ALL_STEPS
    ) -> list[HistogramColumns]:
        """See `Store.histogram_columns`."""
        return self._of(run).histogram_columns(run, rank, subject, steps)

    def tensor_tracks(
        self, run: str, rank: int, subject: str, steps: StepRange = _ALL_STEPS, max_columns: int = 256
    ) -> list[TensorTrack]:
        """See `Store.tensor_tracks`."""
        return self._of(run).tensor_tracks(run, rank, subject, steps, max_columns)

    def histogram_subjects(self, run: str, rank: int = 0) -> list[str]:
        """See `Store.histogram_subjects`."""
        return self._of(run).histogram_subjects(run, rank)

    def histogram_mark(self, run: str, rank: int = 0) -> int | None:
        """See `Store.histogram_mark`."""
        return self._of(run).histogram_mark(run, rank)

    def events(self, run: str, rank: int | None = None) -> list[Event]:
        """See `Store.events`."""
        return self._of(run).events(run, rank)

    def event(self, run: str, event_id: str) -> Event | None:
        """See `Store.event`."""
        return self._of(run).event(run, event_id)

    def run_of_event(self, event_id: str) -> str | None:
        """See `Store.run_of_event`."""
        return next(filter(None, self._each(lambda shard: shard.run_of_event(event_id))), None)

    def documents(self, run: str, kind: str, rank: int | None = None) -> list[StoredDocument]:
        """See `Store.documents`."""
        return self._of(run).documents(run, kind, rank)

    def documents_mark(self, run: str) -> int:
        """See `Store.documents_mark`."""
        return self._of(run).documents_mark(run)

    def document_kinds(self, run: str) -> list[str]:
        """See `Store.document_kinds`."""
        return self._of(run).document_kinds(run)

    def marks(self) -> dict[str, RunMark]:
        """See `Store.marks`."""
        return {run: mark for marks in self._each(lambda shard: shard.marks()) for run, mark in marks.items()}

    def mark_run(self, run: str, *, note: str | None = None, starred: bool | None = None) -> RunMark:
        """See `Store.mark_run`."""
        return self._of(run).mark_run(run, note=note, starred=starred)

    def notes(self, run: str) -> list[StepNote]:
        """See `Store.notes`."""
        return self._of(run).notes(run)

    def write_note(self, run: str, note: StepNote) -> None:
        """See `Store.write_note`."""
        self._of(run).write_note(run, note)

    def remove_note(self, run: str, note_id: str) -> bool:
        """See `Store.remove_note`."""
        return self._of(run).remove_note(run, note_id)

    def gaps(self, run: str, rank: int | None = None) -> list[GapRange]:
        """See `Store.gaps`."""
        return self._of(run).gaps(run, rank)
