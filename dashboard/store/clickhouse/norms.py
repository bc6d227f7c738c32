"""Whole norms of sharded models, put together from parts that may lie on several servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ...errors import DashboardError
from ..buckets import Move
from ..whole_norms import Join
from .rows import ClickRows
from .shards import Places, Shard

_MOST_STEPS: Final = 1000
"""Of what was owed, put together in one commit: the parts of all ranks are in memory meanwhile."""


class NormJoiner:
    """Does what `plan_joins` has planned. Under the lock of commits.

    Args:
        places: Which server has a rank.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._owed: dict[tuple[int, tuple[int, ...]], Join] = {}
        """What needs a server that is away: done when that is back, unless this process ends before."""
        self._touched: set[int] = set()

    def put(self, joins: Sequence[Join], mine: Shard | None = None) -> list[Move]:
        """Write what can be put together, with what could not before.

        Args:
            joins: New ones.
            mine: A server that is written to just now.

        Returns:
            What was written to it; of the others it is pooled already.

        Raises:
            DashboardError: the server that is written to refuses.
        """
        moves: list[Move] = []
        for join in [*self._take_owed(), *joins]:
            home = self._places.of_timeline(join.timeline)
            try:
                found = self._put_together(join, home)
                if home is mine:
                    moves += found
                elif found:
                    self._touched.add(join.timeline)
                    with home.asked("cannot write"):
                        home.database.secure()
                        home.writer.pyramid.advance(found)
                        home.database.secure()
            except DashboardError:
                self._owe(join)
                if mine is home or (mine is not None and mine.away is not None):
                    raise
        return moves

    def take_touched(self) -> set[int]:
        """Return the timelines that have become longer on other servers than the one written to."""
        touched, self._touched = self._touched, set()
        return touched

    def forget(self, run: str) -> None:
        """A run was deleted."""
        self._owed = {key: join for key, join in self._owed.items() if join.run != run}

    def _owe(self, join: Join) -> None:
        key = join.timeline, join.parts
        known = self._owed.get(key)
        steps = join.steps if known is None else np.union1d(known.steps, join.steps)
        self._owed[key] = replace(join, steps=steps)

    def _take_owed(self) -> list[Join]:
        """Return some steps of each."""
        owed, self._owed = self._owed, {}
        for key, join in owed.items():
            if len(join.steps) > _MOST_STEPS:
                self._owed[key] = replace(join, steps=join.steps[_MOST_STEPS:])
        return [replace(join, steps=join.steps[:_MOST_STEPS]) for join in owed.values()]

    def _put_together(self, join: Join, home: Shard) -> list[Move]:
        low, end = int(join.steps[0]), int(join.steps[-1]) + 1
        parts = []
        for shard, timelines in self._places.split(join.timelines).items():
            with shard.asked():
                rows = ClickRows(shard.database)
                parts.append(rows.raw_scalars(timelines, join.parts, first=low, end=end))
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        with home.asked("cannot write"):
            return home.writer.put_norms(join, joined)
