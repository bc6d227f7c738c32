"""How far the values of a step stand above their own recent medians, in MADs; for `jumps.py`.

The loss as it is, gradient norms by their logarithms. Layers have medians and MADs already (`baselines.py`).
Loss and whole gradient have some of their own, refreshed as seldom as those of the layers: what the other
detectors know of these two is refreshed at every fourth step, which costs more than all that is done here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import Floats
from .gradient_baseline import BatchPreview, GradientBaseline

REFRESH_STEPS: Final = 32
KEPT: Final = 128
HALF: Final = KEPT // 2
"""Every 32 steps loss and whole gradient get the median of their last 64 values, and the MAD of the last 128,
each half from its own median: in a run that falls, longer ones say more of the fall than of the noise."""
LEAST_SHARE: Final = 1e-3 / 8.0
"""Of the highest median so far: a jump of the loss by less than a thousandth of it is noise of a converged
run."""
MOST_TIES: Final = 0.25
"""Share of the losses that equal another one. With more (a hinge at 0, a count of errors), median and MAD say
nothing of the scatter; where all are one, there is none."""
LEAST_LOG_MAD: Final = 0.02
"""Of the logarithm of a norm: a jump by less than a sixth is none worth a look."""


class SeriesHeights:
    """Heights of the loss and of the norm of the whole gradient."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._kept: Floats = np.full((2, KEPT + REFRESH_STEPS), np.nan)
        """Loss and logarithm of the norm, of the steps before the last refresh and of those since."""
        self._filled = 0
        self._medians: deque[Floats] = deque([np.full((2, 1), np.nan)] * 3, maxlen=3)
        """(2, 1) of the last refreshes, the newest last."""
        self._scale: Floats = np.full((2, 1), np.nan)
        self._highest = 0.0

    def of(self, losses: Sequence[float | None], totals: Sequence[float | None]) -> Floats:
        """Return the heights of successive steps, (2, steps), and learn their values.

        NaN where a value is unknown, not finite, or has too few before it.

        Args:
            losses: of the steps.
            totals: norms of the whole gradient.
        """
        values = np.empty((2, len(losses)))
        values[0], values[1] = losses, totals
        np.log(values[1], out=values[1])
        if not math.isfinite(float(values.sum())):
            values[~np.isfinite(values)] = np.nan
        heights, start, count = np.empty(values.shape), 0, len(losses)
        while start < count:
            stop = min(start + REFRESH_STEPS - self._filled, count)
            part, first = values[:, start:stop], KEPT + self._filled
            self._kept[:, first : first + stop - start] = part
            np.subtract(part, self._medians[-1], out=heights[:, start:stop])
            heights[:, start:stop] /= self._scale
            self._filled += stop - start
            start = stop
            if self._filled == REFRESH_STEPS:
                self._refresh()
        return heights

    def _refresh(self) -> None:
        self._kept[:, :KEPT] = self._kept[:, REFRESH_STEPS:]
        self._filled = 0
        older, newer = self._kept[:, :HALF], self._kept[:, HALF:KEPT]
        self._medians.append(_medians(newer))
        apart = np.empty((2, KEPT))
        np.subtract(older, self._medians[0], out=apart[:, :HALF])
        np.subtract(newer, self._medians[-1], out=apart[:, HALF:])
        scale = _medians(np.abs(apart, out=apart))
        self._highest = max(self._highest, abs(float(self._medians[-1][0, 0])))
        scale[0, 0] = max(float(scale[0, 0]), LEAST_SHARE * self._highest) or math.nan
        if _is_often_equal(self._kept[0, :KEPT]):
            scale[0, 0] = math.nan
        scale[1, 0] = max(float(scale[1, 0]), LEAST_LOG_MAD)
        self._scale = scale


def _is_often_equal(values: Floats) -> bool:
    known = np.sort(values[~np.isnan(values)])
    ties = np.count_nonzero(known[1:] == known[:-1])
    return bool(MOST_TIES * len(known) < ties < len(known) - 1)


class LayerHeights:
    """Heights of the layers' gradient norms.

    Attributes:
        newest: (steps, layers) of what was noted since `take`; None where nothing was.
        layers: how many there are.
    """

    def __init__(self, state: GradientBaseline) -> None:
        self.newest: Floats | None = None
        self.layers = len(state.layers.median)
        self._state = state

    def take(self) -> Floats | None:
        """Return what was noted, once."""
        newest, self.newest = self.newest, None
        return newest

    def note(self, logs: Floats, ready: npt.NDArray[np.bool_]) -> None:
        """Note one step that is not learnt yet.

        Args:
            logs: (layers,) logarithms of the norms.
            ready: (layers,) where they can be compared.
        """
        layers = self._state.layers
        heights = (logs - layers.median) / np.maximum(layers.mad, LEAST_LOG_MAD)
        heights[~ready] = np.nan
        self.newest = heights[None]

    def note_batch(self, preview: BatchPreview) -> None:
        """Note the steps of a preview before they are learnt."""
        layers = self._state.layers
        heights = preview.above / np.maximum(layers.mad, LEAST_LOG_MAD)
        for above, new in zip(preview.above_new, preview.refreshes, strict=True):
            part, steps = slice(new.start, new.stop), np.arange(len(heights))
            later = above / np.maximum(new.mad, LEAST_LOG_MAD)
            np.copyto(heights[:, part], later, where=steps[:, None] > new.step)
        if layers.samples.min() < self._state.warmup_steps:
            heights[~self._state.known_rows(preview.logs)] = np.nan
        self.newest = heights


def _medians(values: Floats) -> Floats:
    """Medians of two rows without their NaN, (2, 1); NaN where fewer than a quarter is known."""
    ordered, width = np.sort(values, axis=1), values.shape[1]
    if not math.isnan(ordered[0, -1] + ordered[1, -1]):
        return (ordered[:, (width - 1) // 2, None] + ordered[:, width // 2, None]) / 2.0
    medians = np.full((2, 1), np.nan)
    for row, known in enumerate((width - np.isnan(ordered).sum(axis=1)).tolist()):
        if known >= width // 4:
            medians[row] = (ordered[row, (known - 1) // 2] + ordered[row, known // 2]) / 2.0
    return medians
