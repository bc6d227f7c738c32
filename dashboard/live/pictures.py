"""Pictures of a run: what is read and computed for a page, once for all pages that ask for the same.

A picture is complete and never changes; what a client lacks of it says `message`. Called on the hub's reader
threads. The store's revision decides whether a picture is still the newest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import msgspec
import pandas as pd

from probe.wire.training_progress import KIND, TrainingProgress

from ..page.views.breaks import break_fields, line_breaks
from ..page.views.heatmap_statistics import statistic_of
from ..page.views.progress_line import newest_progress, progress_line
from ..page.views.rank_statistics import rank_statistic
from ..page.views.verdict import verdict
from ..store.members import counts_of, events_of_verdict
from ..store.protocol import RankSummary, RunSummary, StepRange, Store
from .answers import Answers
from .charts import read_charts
from .newest import Edge, NewestPoints
from .ranks import RankAnswers, RanksPart, RanksQuestion
from .tracks import Track, size_bytes
from .view import (
    HeatmapPart,
    Subscription,
    choose_rank,
    choose_run,
    events_mark,
    gap_list,
    level_of,
    newest_edge,
    note_list,
    read_heatmap,
    run_list,
    shown_range,
    slow_scalars,
    status,
    step_range,
)

MAX_STATUS_AGE_S: Final = 1.0
"""The clock alone makes a rank silent and a time left shorter."""
SLOW_INTERVAL_S: Final = 1.0
_AT_ONE_REVISION: Final = float("inf")
"""Asked at: nothing but the revision and the age make such an answer good."""
PIXELS_APART: Final = 64
"""Pages of nearly equal width share their pictures: points and columns are multiples of this, from it on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPart:
    """State, tiles, and what is new about events: cheap, and asked for five times a second."""

    runs: list[dict[str, Any]]
    """The run selector's lines."""
    notes: list[dict[str, Any]]
    """What people have written at steps of the run."""
    fields: dict[str, Any]
    """Header fields; `run` is None where there is no such run."""
    newest: NewestPoints | None = None
    """None where there is no such run."""
    read_at: float
    """Monotonic seconds, before the first read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What a page shows of a run at one moment; all parts were read under one snapshot."""

    status: StatusPart
    fields: dict[str, Any] | None = None
    """Header fields of the lines; None without them, or without such a run."""
    heatmap: HeatmapPart | None = None
    tracks: tuple[Track, ...] = ()
    edge: Edge | None = None
    """Where its lines end; None without them."""

    @property
    def size_bytes(self) -> int:
        """Of its arrays."""
        return size_bytes(self.tracks)


class _Chosen(NamedTuple):
    """Which run and rank are shown."""

    runs: list[RunSummary]
    run: RunSummary | None
    rank: RankSummary | None
    of_event: dict[str, str | None]
    """`eventRun`, the run of the event that was asked for without a run; None where no run has it."""


class Question(msgspec.Struct, frozen=True):
    """What distinguishes one picture from another."""

    run: str | None
    event: str | None
    rank: int
    first: int | None
    end: int | None
    window: int | None
    points: int
    columns: int
    unfolded: tuple[str, ...]
    statistic: str
    logged: bool
    ranks: str
    """Statistic of the view Ranks; empty while it is not open."""


class Pictures:
    """All that open pages look at. Thread-safe."""

    def __init__(
        self,
        store: Store,
        *,
        notices: Callable[[], list[str]] = list,
        storage: Callable[[], str] = str,
        on_look: Callable[[str, int], None] = lambda run, rank: None,
    ) -> None:
        """Start without pictures.

        Args:
            store: What is read.
            notices: What pages must be told besides.
            storage: How much room all runs take, one line.
            on_look: Called with the run and the rank of each new picture.
        """
        self._store = store
        self._notices, self._storage, self._on_look = notices, storage, on_look
        self._statuses: Answers[tuple[str | None, str | None, int], StatusPart] = Answers(
            size_bytes=lambda answer: 0, max_age_s=MAX_STATUS_AGE_S
        )
        self._pictures: Answers[Question, Picture] = Answers(size_bytes=lambda answer: answer.size_bytes)
        self._ranks = RankAnswers(store)
        self._progress: Answers[tuple[str, int], TrainingProgress | None] = Answers(size_bytes=lambda _: 0)
        self._slow: Answers[tuple[str, int], pd.DataFrame] = Answers(
            size_bytes=lambda _: 0, max_age_s=SLOW_INTERVAL_S
        )

    def look(self, wish: Subscription, *, with_data: bool, asked_at: float | None = None) -> Picture:
        """Return the picture that a page wants.

        Args:
            wish: What it wants to see.
            with_data: Lines and heatmap too, not only the status.
            asked_at: Monotonic seconds: the picture shows at least what was there then. None is now.
        """
        asked_at = time.monotonic() if asked_at is None else asked_at
        if not with_data:
            return Picture(status=self._ask_status(wish, asked_at))
        question = question_of(wish)
        picture = self._pictures.ask(
            question,
            revision=lambda: self._store.revision(question.run),
            work_out=lambda: self._draw(question),
            asked_at=asked_at,
        )
        if picture.status.read_at >= asked_at:
            return picture
        return replace(picture, status=self._ask_status(wish, asked_at))

    def clear(self) -> None:
        """Forget the pictures: nobody looks any more."""
        self._pictures.clear()
        self._statuses.clear()
        self._ranks.clear()

    def _ask_status(self, wish: Subscription, asked_at: float) -> StatusPart:
        event = _asked_event(wish)
        return self._statuses.ask(
            (wish.run, event, wish.rank),
            revision=self._store.revision,
            work_out=lambda: self._read_status(wish.run, event, wish.rank),
            asked_at=asked_at,
        )

    def _read_status(self, run: str | None, event: str | None, rank: int) -> StatusPart:
        read_at = time.monotonic()
        with self._store.view():
            return self._status(self._choose(run, event, rank), read_at=read_at)

    def _draw(self, question: Question) -> Picture:
        """Read everything of a picture under one snapshot."""
        read_at = time.monotonic()
        revision = self._store.revision(question.run)
        with self._store.view():
            chosen = self._choose(question.run, question.event, question.rank)
            part, run, rank = self._status(chosen, read_at=read_at), chosen.run, chosen.rank
            if run is None or rank is None:
                return Picture(status=part)
            self._on_look(run.run, rank.rank)
            starts = self._store.starts(run.run, rank.rank)
            breaks = line_breaks(starts, self._store.events(run.run, rank.rank), rank.rank)
            steps = step_range(question.first, question.end, question.window, rank, starts)
            charts, tracks = read_charts(
                self._store,
                run.run,
                rank.rank,
                steps=steps,
                points=question.points,
                breaks=breaks,
                with_logged=question.logged,
            )
            heatmap = read_heatmap(
                self._store,
                run.run,
                rank.rank,
                steps=steps,
                statistic=statistic_of(question.statistic),
                columns=question.columns,
                unfolded=question.unfolded,
            )
            gaps = gap_list(self._store, run.run, rank.rank)
            ranks = self._ask_ranks(question, run, steps, revision)
        shown = shown_range(steps, question.end, rank, starts, event_end=part.fields["eventEnd"])
        return Picture(
            status=part,
            fields={
                "range": shown,
                **charts,
                "gaps": gaps,
                "breaks": break_fields(breaks),
                "ranks": None if ranks is None else ranks.fields,
            },
            heatmap=heatmap,
            edge=newest_edge(rank),
            tracks=(*tracks, *(each.track for each in (heatmap, ranks) if each is not None)),
        )

    def _ask_ranks(
        self, question: Question, run: RunSummary, steps: StepRange, revision: int
    ) -> RanksPart | None:
        """All ranks, once for the pages that differ in the picked rank; `revision` is older than the view."""
        if not question.ranks or len(run.ranks) < 2:
            return None
        asked = RanksQuestion(
            asked_run=question.run,
            run=run.run,
            statistic=question.ranks,
            first=steps.first,
            end=steps.end,
            columns=question.columns,
        )
        return self._ranks.ask(run, asked, steps=steps, revision=revision)

    def _choose(self, run: str | None, event: str | None, rank: int) -> _Chosen:
        runs = self._store.runs()
        found = {} if event is None else {"eventRun": self._store.run_of_event(event)}
        chosen = choose_run(runs, found.get("eventRun") or run)
        return _Chosen(runs, chosen, None if chosen is None else choose_rank(chosen, rank), found)

    def _status(self, chosen: _Chosen, *, read_at: float) -> StatusPart:
        run, rank = chosen.run, chosen.rank
        fields: dict[str, Any] = {"run": None, "notices": self._notices(), "storage": self._storage()}
        fields |= chosen.of_event
        newest = None
        if run is not None and rank is not None:
            own, newest = self._run_fields(chosen.runs, run, rank)
            fields |= own
        notes = [] if run is None else note_list(self._store, run)
        return StatusPart(
            runs=run_list(chosen.runs), notes=notes, fields=fields, newest=newest, read_at=read_at
        )

    def _run_fields(
        self, runs: list[RunSummary], run: RunSummary, rank: RankSummary
    ) -> tuple[dict[str, Any], NewestPoints]:
        events = self._store.events(run.run)
        incarnations = {each.rank: each.incarnation for each in run.ranks}
        fields, newest = status(self._store, run, rank, slow=self._slow_scalars(run, rank))
        return fields | {
            "progress": self._progress_fields(run, rank, step_s=fields["stepSeconds"]),
            "events": events_mark(events),
            "eventCounts": run.event_counts,
            "rankCount": len(run.ranks),
            "level": level_of(events, run, rank),
            "histograms": self._store.histogram_mark(run.run, rank.rank),
            "verdict": verdict(
                events_of_verdict(self._store, runs, run),
                last_step=rank.last_step,
                ranks=run.ranks,
                losses=newest.lines["loss"][1],
                member=run.member,
                counts=counts_of(runs, run),
            ),
            "documents": self._store.documents_mark(run.run),
            "started": run.started,
            # An event arrives before the frame of its step: the axis has to make room for its marker.
            # Those from before a restart may be far behind its end.
            "eventEnd": max(
                (each.step + 1 for each in events if each.incarnation >= incarnations.get(each.rank, 0)),
                default=None,
            ),
        }, newest

    def _progress_fields(
        self, run: RunSummary, rank: RankSummary, *, step_s: float | None
    ) -> dict[str, Any] | None:
        """The line above the tiles; its document is read when one of the run has changed."""
        newest = self._progress.ask(
            (run.run, rank.rank),
            revision=lambda: self._store.documents_mark(run.run),
            work_out=lambda: newest_progress(self._store.documents(run.run, KIND, rank.rank)),
            asked_at=_AT_ONE_REVISION,
        )
        line = progress_line(
            newest,
            last_step=rank.last_step,
            step_s=step_s,
            age_s=None if rank.last_time is None else max(0.0, time.time() - rank.last_time),
            is_running=rank.state in ("running", "silent"),
        )
        return None if line is None else asdict(line)

    def _slow_scalars(self, run: RunSummary, rank: RankSummary) -> pd.DataFrame:
        """Read memory at most once a second and run."""
        return self._slow.ask(
            (run.run, rank.rank),
            revision=lambda: 0,
            work_out=lambda: slow_scalars(self._store, run, rank),
            asked_at=_AT_ONE_REVISION,
        )


def question_of(wish: Subscription) -> Question:
    """Return what of a wish decides on the picture."""
    return Question(
        run=wish.run,
        event=_asked_event(wish),
        rank=wish.rank,
        first=wish.first,
        end=wish.end,
        window=wish.window,
        points=_rounded(wish.points),
        columns=_rounded(wish.columns),
        unfolded=tuple(sorted(set(wish.unfolded))),
        statistic=statistic_of(wish.statistic).id,
        logged=wish.logged,
        ranks=rank_statistic(wish.ranks).id if wish.ranks else "",
    )


def _asked_event(wish: Subscription) -> str | None:
    """Return the event whose run is looked for; a run that is named is the one that is shown."""
    return wish.event if wish.run is None else None


def _rounded(pixels: int) -> int:
    return pixels // PIXELS_APART * PIXELS_APART or pixels
