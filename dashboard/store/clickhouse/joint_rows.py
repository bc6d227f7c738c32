"""`JointRows`: the committed rows of several servers as if they were one's.

What is asked of one rank is asked of its server alone, and fails where that is away. What is asked of a run
is asked of all that have something of it, and shows what those have that answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import DashboardError
from ..odd_rows import OddRows
from ..protocol import RunMark, StepNote
from ..pyramid import Piece, Ranges, Steps
from ..rows import HistogramKey
from ..tensors import Columns, Progress, SeriesRows
from .event_counts import MOST_IDS, add_up, all_words, count_own, words_of_others
from .rows import ClickRows
from .shards import Places, Shard

Answer = TypeVar("Answer")


class JointRows:
    """See `Rows` for what the methods mean.

    Args:
        places: Who has what.
        progress: See `ClickRows`.
    """

    def __init__(self, places: Places, progress: dict[int, Progress | None] | None = None) -> None:
        self._places = places
        self._rows = {shard: ClickRows(shard.database, progress) for shard in places.shards}

    def _each(self, ask: Callable[[ClickRows], Answer]) -> list[Answer]:
        """Ask all servers; those that do not answer are left out."""
        return self._those(dict.fromkeys(self._rows, None), lambda rows, _: ask(rows))

    def _those(self, chosen: Mapping[Shard, Any], ask: Callable[[ClickRows, Any], Answer]) -> list[Answer]:
        """Ask some servers, each for what is its own.

        Raises:
            DashboardError: none of them answers.
        """
        answers, failure = list[Answer](), None
        for shard, part in chosen.items():
            try:
                with shard.asked():
                    answers.append(ask(self._rows[shard], part))
            except DashboardError as error:
                failure = error
        if failure is not None and not answers:
            raise failure
        return answers

    def _of(self, timeline: int, ask: Callable[[ClickRows], Answer]) -> Answer:
        shard = self._places.of_timeline(timeline)
        with shard.asked():
            return ask(self._rows[shard])

    # -- of ranks

    def progress(self, timelines: Sequence[int]) -> dict[int, Progress]:
        """See `Rows.progress`."""
        found = self._those(self._places.split(timelines), lambda rows, mine: rows.progress(mine))
        return {timeline: at for part in found for timeline, at in part.items()}

    def kept(self, timelines: Sequence[int]) -> dict[int, Ranges]:
        """See `Rows.kept`."""
        found = self._those(self._places.split(timelines), lambda rows, mine: rows.kept(mine))
        nothing: dict[int, Ranges] = {timeline: [] for timeline in timelines}
        return nothing | {timeline: ranges for part in found for timeline, ranges in part.items()}

    def owners(
        self, timeline: int, kinds: Sequence[str], *, low: int, high: int
    ) -> tuple[Steps, npt.NDArray[np.int64]]:
        """See `Rows.owners`."""
        return self._of(timeline, lambda rows: rows.owners(timeline, kinds, low=low, high=high))

    def scalars(self, timeline: int, series: Sequence[int], piece: Piece) -> Columns:
        """See `Rows.scalars`."""
        return self._of(timeline, lambda rows: rows.scalars(timeline, series, piece))

    def rank_scalars(self, parts: Sequence[Sequence[int]], timelines: Sequence[int]) -> Columns:
        """See `Rows.rank_scalars`."""
        found = self._those(self._places.split(timelines), lambda rows, mine: rows.rank_scalars(parts, mine))
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def tensors(
        self, kind: str, timeline: int, *, series: int, level: int, first: int, end: int, odd: OddRows
    ) -> list[SeriesRows]:
        """See `Rows.tensors`."""
        return self._of(
            timeline,
            lambda rows: rows.tensors(
                kind, timeline, series=series, level=level, first=first, end=end, odd=odd
            ),
        )

    def histogram_keys(
        self, timeline: int, series: Sequence[int], *, first: int, end: int, most: int
    ) -> list[HistogramKey]:
        """See `Rows.histogram_keys`."""
        return self._of(
            timeline, lambda rows: rows.histogram_keys(timeline, series, first=first, end=end, most=most)
        )

    def histograms(self, timeline: int, keys: Sequence[HistogramKey]) -> dict[HistogramKey, bytes | None]:
        """See `Rows.histograms`."""
        return self._of(timeline, lambda rows: rows.histograms(timeline, keys))

    # -- of runs

    def events(self, run: str, event_id: str | None = None) -> list[tuple[str, bytes | None]]:
        """See `Rows.events`."""
        found = _joined(self._each(lambda rows: rows.event_rows(run, event_id)))
        return list({row[2]: row[3] for row in sorted(found, key=lambda row: row[:2])}.items())

    def run_of_event(self, event_id: str) -> str | None:
        """See `Rows.run_of_event`."""
        return next(filter(None, self._each(lambda rows: rows.run_of_event(event_id))), None)

    def event_counts(self) -> list[tuple[str, str, int]]:
        """See `Rows.event_counts`."""
        if self._places.is_even:
            told = self._those(
                {shard: shard for shard in self._rows},
                lambda _, shard: (shard, words_of_others(shard.database)),
            )
            words = _joined(part for _, part in told)
            ids = {number for _, number, _ in words}
            if len(ids) <= MOST_IDS:
                # Of events that others first speak of between the two questions own words count alone.
                found = self._those(
                    {shard: shard for shard, _ in told}, lambda _, shard: count_own(shard.database, ids)
                )
                return add_up(
                    _joined(counts for counts, _ in found), [*words, *_joined(own for _, own in found)]
                )
        every = self._those(
            {shard: shard for shard in self._rows}, lambda _, shard: all_words(shard.database)
        )
        return add_up((), _joined(every))

    def severities(self, run: str, event_id: str) -> list[str]:
        """See `Rows.severities`."""
        found = _joined(self._each(lambda rows: rows.severity_rows(run, event_id)))
        return [max(found)[2]] if found else []

    def documents(self, run: str, kind: str) -> list[tuple[Any, ...]]:
        """See `Rows.documents`."""
        found = sorted(
            _joined(self._each(lambda rows: rows.document_rows(run, kind))), key=lambda row: row[0]
        )
        return list({row[1:6]: row[1:] for row in found}.values())

    def document_kinds(self, run: str) -> list[str]:
        """See `Rows.document_kinds`."""
        return sorted(set(_joined(self._each(lambda rows: rows.document_kinds(run)))))

    def document_sizes(self, run: str) -> list[tuple[Any, ...]]:
        """See `Rows.document_sizes`."""
        return list(
            {row[:5]: row for row in _joined(self._each(lambda rows: rows.document_sizes(run)))}.values()
        )

    def marks(self) -> dict[str, RunMark]:
        """See `Rows.marks`."""
        found = _joined(self._each(lambda rows: rows.mark_rows()))
        return {run: mark for _, run, mark in sorted(found, key=lambda row: row[0])}

    def notes(self, run: str) -> list[StepNote]:
        """See `Rows.notes`."""
        found = sorted(_joined(self._each(lambda rows: rows.note_rows(run))), key=lambda row: row[0])
        newest = {note.id: (note, is_gone) for _, is_gone, note in found}
        return [note for note, is_gone in newest.values() if not is_gone]


def _joined(answers: Iterable[Iterable[Answer]]) -> list[Answer]:
    return [row for rows in answers for row in rows]
