"""Gathers how far loss and gradients stand above their medians, a step or a batch at a time, for `jumps.py`.

Used by the bank on the training thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from .base import Floats
from .gradients import GradientScaleDetector
from .heights import SeriesHeights
from .jumps import Jump, JumpDetector

_MOST_KEPT: Final = 64
"""Jumps that wait to be asked for."""


class JumpWatch:
    """Looks for lasting jumps of the loss, of the whole gradient and of each layer's."""

    def __init__(self) -> None:
        self._series = SeriesHeights()
        self._noted: list[Floats | None] = []
        self._families: Floats = np.ones(2)
        """Of loss, whole gradient and each layer."""
        self._detector = JumpDetector()
        self._found: deque[Jump] = deque(maxlen=_MOST_KEPT)
        self._step = -1

    def begin(self, gradients: GradientScaleDetector) -> None:
        """Steps are about to be judged: forget what was noted of some that a signal's handler broke off."""
        gradients.heights.take()
        self._noted = []

    def note(self, gradients: GradientScaleDetector) -> None:
        """Take over the layers' heights of what has just been judged: one step, or all of a batch."""
        self._noted.append(gradients.heights.take())
        layers = gradients.heights.layers
        if layers != len(self._families) - 2:
            self._families = np.concatenate(([1.0, 1.0], np.full(layers, max(layers, 1.0))))

    def judge(
        self, steps: Sequence[int], losses: Sequence[float | None], totals: Sequence[float | None]
    ) -> None:
        """Judge the steps that the detectors have judged since the last call.

        Args:
            steps: their numbers; where they go back, a run has begun anew.
            losses: of each.
            totals: norm of the whole gradient of each.
        """
        layers = self._layer_heights(len(steps))
        starts = [0, *(index for index, (a, b) in enumerate(pairwise(steps), 1) if b < a), len(steps)]
        for start, stop in pairwise(starts):
            if steps[start] < self._step:
                self._series.clear()
                self._detector.clear()
            self._step = steps[stop - 1]
            heights = np.empty((stop - start, 2 + layers.shape[1]))
            with np.errstate(all="ignore"):
                heights[:, :2] = self._series.of(losses[start:stop], totals[start:stop]).T
            heights[:, 2:] = layers[start:stop]
            self._found.extend(self._detector.judge(steps[start:stop], heights, self._families))

    def _layer_heights(self, steps: int) -> Floats:
        """Return what was noted, (steps, layers), once; NaN where a step was not judged."""
        noted, self._noted = self._noted, []
        if len(noted) == 1 and noted[0] is not None:
            return noted[0]
        heights = np.full((steps, len(self._families) - 2), np.nan)
        for index, row in enumerate(noted):
            if row is not None:
                heights[index] = row
        return heights

    def take(self) -> list[Jump]:
        """Return what has jumped since the last call, in the order in which it was found."""
        found = list(self._found)
        self._found.clear()
        return found
