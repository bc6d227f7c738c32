"""What the reads ask of an engine: committed rows, as columns and tuples. All pooling and merging is theirs.

`DuckRows` and `ClickRows` are the implementations: each is one read's, with a cursor or a client of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .odd_rows import OddRows
from .protocol import RunMark, StepNote
from .pyramid import Piece, Ranges, Steps
from .tensors import Columns, Progress, SeriesRows

HistogramKey = tuple[int, int, int, int]
"""(incarnation, seq, series, step) of one histogram."""


class Rows(Protocol):
    """The committed rows of a store. What cannot be read raises the error of the engine."""

    def progress(self, timelines: Sequence[int]) -> dict[int, Progress]:
        """How far timelines are committed; without those where nothing is, or whose row is odd."""
        ...

    def kept(self, timelines: Sequence[int]) -> dict[int, Ranges]:
        """Where raw rows exist below the floor, of each timeline: ascending, joined where they touch."""
        ...

    def owners(
        self, timeline: int, kinds: Sequence[str], *, low: int, high: int
    ) -> tuple[Steps, npt.NDArray[np.int64]]:
        """The committed steps of `[low, high]`, and the newest incarnation that has each."""
        ...

    def scalars(self, timeline: int, series: Sequence[int], piece: Piece) -> Columns:
        """Rows of a piece: series, step, time, incarnation, seq, min, mean, max, finite, nan, inf, pooled.

        Of a step that older starts have, too, no row of theirs; incarnation and seq of a pooled row are -1.
        """
        ...

    def tensors(
        self, kind: str, timeline: int, *, series: int, level: int, first: int, end: int, odd: OddRows
    ) -> list[SeriesRows]:
        """Rows of one series in `[first, end)`, under the same rules. Those of an odd length go to `odd`."""
        ...

    def rank_scalars(self, parts: Sequence[Sequence[int]], timelines: Sequence[int]) -> Columns:
        """Scalars pooled to the width of their part.

        Columns: series, step, incarnation, seq, high, mean, finite, nan, inf.

        Args:
            parts: series, level, first, end and width of each part, as columns. Rows of width 1 have their
                incarnation and sequence number, others -1.
            timelines: that the series belong to.
        """
        ...

    def histogram_keys(
        self, timeline: int, series: Sequence[int], *, first: int, end: int, most: int
    ) -> list[HistogramKey]:
        """The newest histograms with steps in `[first, end)`, newest first; of a timeline's rank."""
        ...

    def histograms(self, timeline: int, keys: Sequence[HistogramKey]) -> dict[HistogramKey, bytes | None]:
        """The packed counts of some, of which there must be one; of a timeline's rank."""
        ...

    def events(self, run: str, event_id: str | None = None) -> list[tuple[str, bytes | None]]:
        """Id and record of a run's events, or of the one of an id."""
        ...

    def run_of_event(self, event_id: str) -> str | None:
        """The run that has an event."""
        ...

    def event_counts(self) -> list[tuple[str, str, int]]:
        """Run, severity and how many events there are."""
        ...

    def severities(self, run: str, event_id: str) -> list[str]:
        """The severity of one event, if it is there."""
        ...

    def documents(self, run: str, kind: str) -> list[tuple[Any, ...]]:
        """Run, rank, incarnation, kind, key, step, time and body of the documents of a kind."""
        ...

    def document_kinds(self, run: str) -> list[str]:
        """Kinds of a run's documents."""
        ...

    def document_sizes(self, run: str) -> list[tuple[Any, ...]]:
        """Run, rank, incarnation, kind, key and bytes of a run's documents."""
        ...

    def marks(self) -> dict[str, RunMark]:
        """What people have said of runs."""
        ...

    def notes(self, run: str) -> list[StepNote]:
        """What people have written at steps of a run, in any order."""
        ...
