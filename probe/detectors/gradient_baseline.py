"""What the gradients of a healthy run look like, layer by layer and as a whole; for `gradients.py`.

Kept on the training thread. A whole batch of steps is learnt at once, with the same result as one by one.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from .base import Floats
from .baselines import Baseline, RowHistory, RowRefresh, SeriesHistory

Flags = npt.NDArray[np.bool_]
REFRESH_STEPS: Final = 4
PEAK_SHARE: Final = 0.1
"""A burst below this share of the level that the run came down from is noise of a converged run."""
PEAK_DECAY: Final = 1e-3
"""Natural-log units per step in which that level is forgotten (a factor e in 1,000 steps)."""
LASTING_SHARE: Final = 0.01
"""So is a burst below this share of the highest level the run ever had, however long ago: its weights have
survived hundreds of such steps. Adam bursts by factors of thousands once its second moments are all noise."""
RESOLUTION: Final = 10.0 * float(np.finfo(np.float32).eps)
"""So is a norm below this share of the norm of the weights: at a learning rate of 0.1 it changes them by less
than a rounding unit of float32. It also speaks for a run that resumes converged, without a past."""


class BatchPreview(msgspec.Struct):
    """What learning a batch would bring, and what its steps are judged by; nothing is learnt yet."""

    norms: Floats
    """(steps, rows) norms, NaN where the layer has no gradient."""
    logs: Floats
    """(steps, rows) logarithms, NaN where the layer has no gradient or a zero one."""
    refreshes: list[RowRefresh]
    above: Floats
    """(steps, rows): the logarithms above the medians before the batch."""
    above_new: list[Floats]
    """(steps, rows of the refresh): above the medians of each refresh."""
    common: list[float]
    """Log of each step's norm over the ready layers, relative to what their medians say."""


class GradientBaseline:
    """Windows of the layers' log norms and of the whole model's norm relative to them."""

    def __init__(self, rows: int, *, warmup_steps: int) -> None:
        self.layers = RowHistory(rows)
        self.common = SeriesHistory(refresh_steps=REFRESH_STEPS)
        self.healthy = 0
        """Steps learnt."""
        self.warmup_steps = warmup_steps
        self._peak: Floats = np.full(rows, -np.inf)
        """Highest median so far, in units that rise by PEAK_DECAY a step while it stays where it is."""
        self._highest: Floats = np.full(rows, -np.inf)
        """Highest median ever."""

    # ------------------------------------------------------------------------------------ one step

    def ready(self, logs: Floats) -> Flags:
        """Return (rows,): layers whose gradient can be compared with enough earlier ones."""
        return (self.layers.samples >= self.warmup_steps) & ~np.isnan(logs + self.layers.level)

    def against_median(self, norms: Floats, ready: Flags) -> tuple[float, float]:
        """Log of the norm over the ready layers relative to that of their medians, and the latter."""
        if not ready.any():
            return math.nan, math.nan
        expected, actual = log_l2(np.where(ready, (self.layers.level, norms), 0.0))
        return actual - expected, expected

    def floor(self, ready: Flags, weights_norm: float) -> float:
        """Log of the norm below which nothing is an explosion, whatever the run's median."""
        fading = math.log(PEAK_SHARE) + log_norm(np.where(ready, self._peak, -np.inf))
        lasting = math.log(LASTING_SHARE) + log_norm(np.where(ready, self._highest, -np.inf))
        fading -= PEAK_DECAY * self.healthy
        resolution = math.log(RESOLUTION * weights_norm) if 0.0 < weights_norm < math.inf else -math.inf
        return max(fading, lasting, resolution)

    def learn(self, logs: Floats, common: float) -> None:
        """Add one healthy step."""
        self.layers.add(logs)
        self.healthy += 1
        if self.healthy == self.warmup_steps:
            self.layers.refresh_all()
        self._raise_peak(slice(None), self.layers.median, self.healthy)
        if math.isfinite(common):
            self.common.add(common)

    def _raise_peak(self, rows: slice, median: Floats, healthy: int | npt.NDArray[np.intp]) -> None:
        self._peak[rows] = np.fmax(self._peak[rows], median + PEAK_DECAY * healthy)
        self._highest[rows] = np.fmax(self._highest[rows], median)

    # -------------------------------------------------------------------------------------- a batch

    def preview(self, norms: Floats) -> BatchPreview | None:
        """Say what learning (steps, rows) of norms would bring; None where it has to go one by one."""
        if self.healthy < self.warmup_steps or not norms.shape[1]:
            return None
        logs = np.log(norms)
        is_partial = not math.isfinite(logs.sum())
        if is_partial:
            if np.isinf(norms).any():
                return None
            logs[norms == 0.0] = np.nan
        refreshes = self.layers.preview(logs)
        steps = len(norms)
        both = self._norms_and_levels(norms, refreshes)
        if is_partial or self.layers.samples.min() < self.warmup_steps:
            ready = self._ready_rows(logs, both[steps:])
            if not ready.any(axis=1).all():
                return None
            both = np.where(np.concatenate((ready, ready)), both, 0.0)
        lengths = log_l2(both)
        common = [actual - usual for actual, usual in zip(lengths[:steps], lengths[steps:], strict=True)]
        if not all(map(math.isfinite, common)):
            return None
        above_new = [logs[:, new.start : new.stop] - new.median for new in refreshes]
        return BatchPreview(norms, logs, refreshes, logs - self.layers.median, above_new, common)

    def stay_within(
        self, preview: BatchPreview, *, jump: float, fall: float, mads: float, slack: float
    ) -> bool:
        """Whether every layer stays within its own limits, whichever of the batch's medians they are of.

        Args:
            preview: of the batch.
            jump: least distance of the upper limit from the median, in natural-log units.
            fall: distance of the lower limit from the higher one of median and slow reference, negative.
            mads: distance of the upper limit in MADs, where that is more.
            slack: how much nearer a proof stops, for rounding.
        """
        layers = self.layers
        if self._stay_far_within(preview, jump=jump, fall=fall + slack):
            return True
        highest, lowest = np.fmax.reduce(preview.logs, axis=0), np.fmin.reduce(preview.logs, axis=0)
        sections = [(slice(None), layers.median, layers.mad, np.fmax(layers.median, layers.slow))]
        for new in preview.refreshes:
            rows = slice(new.start, new.stop)
            sections.append((rows, new.median, new.mad, np.fmax(new.median, new.slow)))
        for rows, median, mad, reference in sections:
            if (lowest[rows] < reference + fall).any():
                return False
            above = highest[rows] - median
            if (above > jump).any() and (above > np.maximum(mads * mad - slack, jump)).any():
                return False
        return True

    def _stay_far_within(self, preview: BatchPreview, *, jump: float, fall: float) -> bool:
        """Whether that is certain of all layers at once, by a third of the operations; the usual case."""
        layers = self.layers
        sections = [(preview.above, layers.slow - layers.median)]
        sections += [
            (above, new.slow - new.median)
            for above, new in zip(preview.above_new, preview.refreshes, strict=True)
        ]
        # NaN, of a layer that has no gradient, is neither.
        return all(
            above.max() <= jump and above.min() > max(slower.max(), 0.0) + fall for above, slower in sections
        )

    def extend(self, preview: BatchPreview) -> None:
        """Learn the steps of a preview, all of them healthy."""
        before = self.healthy
        for refresh in preview.refreshes:
            rows = slice(refresh.start, refresh.stop)
            old = np.where(refresh.step > 0, self.layers.median[rows], np.nan)
            self._raise_peak(rows, old, before + refresh.step)
        self.layers.extend(preview.logs, preview.refreshes)
        self.healthy += len(preview.norms)
        self._raise_peak(slice(None), self.layers.median, self.healthy)
        self.common.extend(preview.common)

    def baselines_of(self, preview: BatchPreview) -> list[Baseline]:
        """Return what the preview's steps are judged by as a whole."""
        return self.common.preview(preview.common)

    def _norms_and_levels(self, norms: Floats, refreshes: list[RowRefresh]) -> Floats:
        """(2 steps, rows): the norms of the steps, and after them the medians that each is judged by."""
        steps = len(norms)
        both = np.empty((2 * steps, norms.shape[1]))
        both[:steps], levels = norms, both[steps:]
        levels[:] = self.layers.level
        for refresh in refreshes:
            part = levels[:, refresh.start : refresh.stop]
            np.copyto(part, refresh.level, where=np.arange(steps)[:, None] > refresh.step)
        return both

    def _ready_rows(self, logs: Floats, levels: Floats) -> Flags:
        """`ready` of each step, (steps, rows)."""
        rows: Flags = self.known_rows(logs) & ~np.isnan(logs + levels)
        return rows

    def known_rows(self, logs: Floats) -> Flags:
        """Return (steps, rows): layers with enough values before each step to compare it with."""
        present = ~np.isnan(logs)
        before = self.layers.samples + np.cumsum(present, axis=0) - present
        rows: Flags = before >= self.warmup_steps
        return rows


def log_l2(values: Floats) -> list[float]:
    """Log of the L2 norm of each row of non-negative numbers, without overflow; -inf for a row of zeros."""
    top = values.max(axis=1)
    shares = values / top[:, None]
    np.multiply(shares, shares, out=shares)
    sums = np.add.reduce(shares, axis=1)
    rows = zip(top.tolist(), sums.tolist(), strict=True)
    return [math.log(high) + 0.5 * math.log(total) if high > 0.0 else -math.inf for high, total in rows]


def log_norm(logs: Floats) -> float:
    """Log of the L2 norm of numbers given as logs; -inf where all are."""
    top = float(logs.max())
    if math.isinf(top):
        return top
    shares = np.exp(logs - top)
    return top + 0.5 * math.log(float(shares @ shares))


def l2_norm(norms: Floats) -> float:
    """L2 norm over the layers that have one, without overflow; 0 where none has."""
    known = norms[~np.isnan(norms)]
    scale = float(known.max(initial=0.0))
    if scale == 0.0 or math.isinf(scale):
        return scale
    return scale * float(np.sqrt(np.square(known / scale).sum()))


def exp_of(log: float) -> float:
    """Exponential that neither overflows nor becomes 0."""
    return math.exp(min(max(float(log), -700.0), 700.0))
