"""The columns that all tables of rows begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..tensors import Columns
from .schema import number_of


class RunColumns:
    """Makes them.

    Args:
        run_of: Returns the run of a timeline.
    """

    def __init__(self, run_of: Callable[[int], str]) -> None:
        self._run_of = run_of

    def __call__(self, timelines: Sequence[int], lengths: Sequence[int]) -> Columns:
        """Return the columns run and timeline of blocks of so many rows."""
        known = {timeline: number_of("run", self._run_of(timeline)) for timeline in set(timelines)}
        return {
            "run": np.repeat(np.array([known[timeline] for timeline in timelines], np.int64), lengths),
            "timeline": np.repeat(np.array(timelines, np.int64), lengths),
        }
