"""What the left side of a comparison was at its last steps, and the statistics of that. Pure numpy.

A value that is NaN or infinite is no history. One ring of `HISTORY_STEPS` values for each match.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from ...delivery.control.grammar import HISTORY_STEPS, LEAST_HISTORY

Floats = npt.NDArray[np.float64]
_SORTED_AT_ONCE: Final = 256
"""Matches whose histories are sorted at every step, 0.2 ms; of more, every second, third, ... step."""


class SideHistory:
    """The last `HISTORY_STEPS` values of one left side."""

    def __init__(self) -> None:
        self._ring: Floats = np.full((0, HISTORY_STEPS), np.nan)
        self._names: tuple[str, ...] = ()
        self._newest: Floats = np.full(0, np.nan)
        self._written = 0
        self._known: dict[str, Floats] = {}
        self._known_at = 0

    def follow(self, names: tuple[str, ...], size: int) -> None:
        """Begin anew where the matches are others than before."""
        if len(self._ring) != size or names != self._names:
            self._ring, self._names = np.full((size, HISTORY_STEPS), np.nan), names
            self._newest = np.full(size, np.nan)
            self._written, self._known = 0, {}

    def note(self, values: Floats) -> None:
        """Take in the values of a step that has been judged."""
        finite = np.isfinite(values)
        self._ring[:, self._written % HISTORY_STEPS] = np.where(finite, values, np.nan)
        self._newest = np.where(finite, values, self._newest)
        self._written += 1

    def read(self, statistic: str) -> Floats:
        """Return a statistic, (matches,); NaN where there is too little history for it."""
        if statistic == "previous":
            return self._newest
        if self._known_at != self._written:
            stride = -(-len(self._ring) // _SORTED_AT_ONCE)
            if self._written % max(stride, 1) == 0 or not self._known:
                self._known, self._known_at = {}, self._written
        if statistic not in self._known:
            self._known[statistic] = self._compute(statistic)
        return self._known[statistic]

    def count(self, match: int) -> int:
        """How many values one match has."""
        return int(np.isfinite(self._ring[match]).sum())

    def _compute(self, statistic: str) -> Floats:
        ring = self._ring[:, : max(min(self._written, HISTORY_STEPS), 1)]
        present = np.isfinite(ring)
        counts = present.sum(axis=1)
        if statistic == "mean":
            values = np.where(present, ring, 0.0).sum(axis=1) / np.maximum(counts, 1)
        elif statistic == "max":
            values = np.where(present, ring, -math.inf).max(axis=1)
        elif statistic == "mad":
            values = _medians(np.abs(ring - _medians(ring, counts)[:, None]), counts)
        else:
            values = _medians(ring, counts)
        return np.where(counts >= LEAST_HISTORY, values, np.nan)


def _medians(rows: Floats, counts: npt.NDArray[np.intp]) -> Floats:
    """Return the median of each row, NaN left out, which sorts last."""
    ordered = np.sort(rows, axis=1)
    low, high = np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, rows.shape[1] - 1)
    index = np.arange(len(rows))
    medians: Floats = (ordered[index, low] + ordered[index, high]) / 2
    return medians
