"""Steps that are written again after their raw rows were removed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from ..edge import ScalarBlock, TensorBlock
from ..pyramid import FACTOR, join_ranges, uncovered
from ..retention import RESIDUE, kinds_of
from ..timelines import SCALAR
from .connection import Connections
from .pyramid import Known, Place, Pyramid, now_ms, without_rows
from .retention import Retention, blocks_of
from .rows import REWRITTEN, ClickRows


class RewrittenSteps:
    """Keeps what stands for removed rows where new ones come.

    Args:
        database: To read from.
        run_of: Returns the run of a timeline.
        pyramid: Writes pooled rows.
        retention: Notes which steps have been written again.
    """

    def __init__(
        self, database: Connections, run_of: Callable[[int], str], pyramid: Pyramid, retention: Retention
    ) -> None:
        self._rows = ClickRows(database)
        self._run_of = run_of
        self._pyramid = pyramid
        self._retention = retention

    def keep(self, scalars: Sequence[ScalarBlock], tensors: Sequence[TensorBlock]) -> None:
        """Before their rows come: put by what stands for the removed ones, and note where that is, once."""
        steps = [(block.timeline, True, block.frame_steps) for block in scalars]
        steps += [(block.timeline, False, block.step) for block in tensors]
        known = self._rows.progress(sorted({timeline for timeline, _, _ in steps}))
        old = [
            (timeline, is_scalar, part[part < known[timeline].raw_floor])
            for timeline, is_scalar, part in steps
            if timeline in known
        ]
        old = [each for each in old if len(each[2])]
        if not old:
            return
        kept = self._rows.kept(sorted({timeline for timeline, _, _ in old}))
        fresh: dict[tuple[int, bool], set[tuple[int, int]]] = defaultdict(set)
        for timeline, is_scalar, part in old:
            for bucket in np.unique(part // FACTOR).tolist():
                first = bucket * FACTOR
                if gaps := uncovered(kept[timeline], first, first + FACTOR):
                    fresh[timeline, is_scalar].update(gaps)
        blocks: dict[str, set[int]] = defaultdict(set)
        for (timeline, _), ranges in fresh.items():
            blocks[self._run_of(timeline)].update(blocks_of([first for first, _ in ranges]))
        for run, numbers in blocks.items():
            self._retention.clear(run, numbers)
        for (timeline, is_scalar), ranges in fresh.items():
            for first, end in join_ranges(sorted(ranges)):
                for kind in kinds_of(is_scalar):
                    self._put_by(timeline, Place(kind, RESIDUE, first, end, was_closed=True))
                self._retention.note(self._run_of(timeline), timeline, [(first, end)], REWRITTEN)

    def _put_by(self, timeline: int, place: Place) -> None:
        nothing = Known({}, now_ms())
        first, end = place.first, place.end
        if place.kind == SCALAR:
            there = self._rows.pooled_scalars([timeline], None, level=FACTOR, first=first, end=end)
            self._pyramid.insert_scalars(there, RESIDUE)
            left = self._rows.pooled_scalars(
                [timeline], None, level=RESIDUE, first=first, end=end, is_all=True
            )
            self._pyramid.insert_scalars(without_rows(left, there, left["version"] + 1), RESIDUE)
        else:
            rows = self._rows.tensor_rows(place.kind, [timeline], level=FACTOR, first=first, end=end)
            written = self._pyramid.insert_tensors(place.kind, RESIDUE, rows, nothing)
            before = self._rows.tensor_rows(
                place.kind, [timeline], level=RESIDUE, first=first, end=end, is_all=True
            )
            self._pyramid.empty_tensors(place, before, written, nothing)
