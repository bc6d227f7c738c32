"""Loss plateau: a network that does not learn, and one that has stopped.

The losses of GANs and of policies are no measure of progress, and a converged run is flat because it is
done. So a warning needs a proof: the loss is exactly what guessing gives, or it has not moved from the first
step on by more than a share that its noise leaves no doubt about. As long as its weights change as those of
a training do, it may be before a breakthrough (a parity is learnt all at once), which is information for ten
times as long. What has stopped improving is information.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..wire import Severity
from .base import Finding, Floats
from .cause_advice import BEFORE_IT_LEARNS
from .label_frequencies import LabelFrequencyDetector
from .medians import median_of
from .nonfinite import NEIGHBOURS
from .sample import ModuleSample, Sample, Succession
from .sampled_thresholds import SampledThresholds

MIN_LOSSES: Final = 30
KEPT: Final = 256
"""Losses that are judged; of a longer stretch every second, every fourth, ..."""
BLOCKS: Final = 5
PRECISION: Final = 0.5
"""Standard errors must be below this share of the change that is looked for."""
GUESSING: Final = 0.02
"""Relative distance from the logarithm of the number of classes."""
CREEP: Final = 0.1
"""A fall of this share of the change that is looked for is progress, if its noise allows to say so."""
EVERY: Final = 8
"""Samples between two judgements: a plateau can wait, and the medians cost."""
STOPPED_FACTOR: Final = 7
"""Times `plateau_steps` that a run must last before it can have stopped improving."""
MIN_FALL: Final = 0.1
"""Of the first loss: without such a fall, beyond all doubt of the medians, there is nothing to stop."""
FALLEN_ERRORS: Final = 6.0
TRAINED: Final = 2e-4
"""An update of this share of a weight matrix, and more: weights change; about 1e-3 is usual."""
SATURATED: Final = 0.1
"""Share of the first gradients below which what is left of them is no sign of training."""
LONGEST_WAIT: Final = 10
"""Times `plateau_steps` for which nothing learnt may be before a breakthrough."""
DONE_SHARE: Final = 1e-2
"""A loss that has come down to this share of the first is done, not stuck."""


class Level(NamedTuple):
    """Median of some losses, and how far it may be off."""

    median: float
    error: float


def level_of(losses: Sequence[float] | Floats) -> Level:
    """Median and its standard error.

    The error of a median of n normal values is 1.2533 sigma / sqrt(n), and sigma is 1.4826 MAD.
    """
    values = np.asarray(losses, dtype=np.float64)
    median = float(median_of(values))
    mad = float(median_of(np.abs(values - median)))
    return Level(median, 1.2533 * 1.4826 * mad / math.sqrt(len(values)))


class PlateauDetector:
    """Emits `loss_plateau`: a warning where the run does not learn, information where it has stopped to.

    Args:
        thresholds: of the session.
        labels: finds the loss of the labels' frequencies, which is judged as that of guessing is.
    """

    def __init__(self, thresholds: SampledThresholds, labels: LabelFrequencyDetector | None = None) -> None:
        self._thresholds = thresholds
        self._labels = labels or LabelFrequencyDetector(thresholds)
        self._succession = Succession()
        self._reset()

    def _reset(self) -> None:
        self._all = _ThinnedLosses()
        self._recent: deque[tuple[int, float]] = deque()
        self._standing: list[Finding] = []
        self._judged = 0
        self._largest_update = self._first_gradient = math.nan
        self._is_matrix: npt.NDArray[np.bool_] | None = None
        self._stuck_since = self._stuck_at = 0
        """The first step and the newest one at which nothing was learnt."""
        self._classes: int | None = None
        self._at_labels: Finding | None = None
        """That the loss is that of always predicting the labels' frequencies, since it was found."""

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding while the loss is on a plateau."""
        if self._succession.begins_anew(sample):
            self._reset()
        if sample.modules is not None:
            self._classes = _classes(sample.modules) or self._classes
        self._note_training(sample)
        if found := self._labels.observe(sample):
            self._at_labels = found[0]
            self._standing = [self._stuck(sample, found[0])]
        if sample.loss is None:
            return list(self._standing)
        self._all.add(sample.step, sample.loss)
        self._remember(sample.step, sample.loss)
        self._judged += 1
        if self._judged % EVERY == 0:
            stuck = self._at_frequencies(sample) or self._guessing(sample) or self._flat(sample)
            finding = self._stopped(sample) if stuck is None else self._stuck(sample, stuck)
            self._standing = [] if finding is None else [finding]
        return list(self._standing)

    def _note_training(self, sample: Sample) -> None:
        if sample.is_matrix is not None:
            self._is_matrix = sample.is_matrix
        if sample.update_ratio is not None and self._is_matrix is not None:
            known = sample.update_ratio[self._is_matrix & np.isfinite(sample.update_ratio)]
            self._largest_update = float(known.max()) if len(known) else self._largest_update
        if math.isnan(self._first_gradient) and sample.total_grad_norm:
            self._first_gradient = sample.total_grad_norm

    def _stuck(self, sample: Sample, finding: Finding) -> Finding:
        """Nothing was learnt so far: information as long as weights change as in a training."""
        wanted = self._thresholds.plateau_steps
        if sample.step - self._stuck_at > wanted:
            self._stuck_since = sample.step - wanted
        self._stuck_at = sample.step
        gradient = sample.total_grad_norm
        has_gradient = gradient is not None and gradient > SATURATED * self._first_gradient
        is_long = sample.step - self._stuck_since >= LONGEST_WAIT * wanted
        if is_long or not (has_gradient and self._largest_update >= TRAINED):
            return finding
        return replace(
            finding,
            severity="info",
            message=f"{finding.message}; its weights still change (by up to "
            f"{float(f'{self._largest_update:.2g}'):.2%} per update)",
            advice=BEFORE_IT_LEARNS,
        )

    def _remember(self, step: int, loss: float) -> None:
        """Keep the losses of the last `plateau_steps`, evenly spread."""
        recent, wanted = self._recent, self._thresholds.plateau_steps
        if recent and step - recent[-1][0] < wanted // KEPT:
            return
        recent.append((step, loss))
        while len(recent) > MIN_LOSSES + 1 and step - recent[1][0] >= wanted:
            recent.popleft()

    def _at_frequencies(self, sample: Sample) -> Finding | None:
        """The loss has not left that of the labels' frequencies, where it was found before.

        Each batch has labels of its own, so losses differ more than of a model that guesses.
        """
        found, recent = self._at_labels, self._recent
        if found is None or found.baseline is None or len(recent) < MIN_LOSSES:
            return found
        guess, level = found.baseline["guess"], level_of([loss for _, loss in recent])
        if abs(level.median - guess) > GUESSING * guess + 2.0 * level.error:
            self._at_labels = None
            return None
        return self._finding(
            sample,
            level,
            f"Loss {level.median:.4g} is still that of always predicting the label frequencies at step "
            f"{sample.step}",
        )

    def _guessing(self, sample: Sample) -> Finding | None:
        """The recent loss is that of a model that gives every class the same probability."""
        options, recent = self._thresholds, self._recent
        if self._classes is None or len(recent) < MIN_LOSSES:
            return None
        if recent[-1][0] - recent[0][0] < options.plateau_steps:
            return None
        guess = math.log(max(self._classes, 2))
        losses = np.array([loss for _, loss in recent])
        level = level_of(losses)
        if (
            abs(level.median - guess) > GUESSING * guess
            or level.error > PRECISION * options.plateau_change * guess
        ):
            return None
        half = len(losses) // 2
        first, last = level_of(losses[:half]), level_of(losses[half:])
        fall = first.median - last.median
        if fall > max(2.0 * math.hypot(first.error, last.error), 0.2 * options.plateau_change * guess):
            return None
        return self._finding(
            sample,
            level,
            f"Loss {level.median:.4g} is what guessing among {max(self._classes, 2)} classes gives, at the "
            f"{recent[-1][0] - recent[0][0]} steps up to step {sample.step}",
        )

    def _flat(self, sample: Sample) -> Finding | None:
        """The loss has not moved since the first step, neither up nor down."""
        options, losses = self._thresholds, self._all
        span = losses.span
        if span < options.plateau_steps or len(losses.values) < MIN_LOSSES:
            return None
        levels = losses.levels()
        size = abs(levels[0].median)
        change = options.plateau_change * size
        if size == 0.0 or max(level.error for level in levels) > PRECISION * change:
            return None
        if max(abs(level.median - levels[0].median) for level in levels) > change:
            return None
        if abs(losses.values[0] - levels[0].median) > 5.0 * change:
            return None
        doubt = 4.0 * math.hypot(levels[0].error, levels[-1].error)
        if levels[0].median - levels[-1].median > max(doubt, CREEP * change):
            return None
        return self._finding(
            sample,
            levels[-1],
            f"Loss has not changed by more than {options.plateau_change:.1%} since step "
            f"{losses.first_step}: {levels[0].median:.4g}, now {levels[-1].median:.4g} at step {sample.step}",
        )

    def _stopped(self, sample: Sample) -> Finding | None:
        """It had improved, and has not in the second half of a long run."""
        losses = self._all
        if (
            losses.span < STOPPED_FACTOR * self._thresholds.plateau_steps
            or len(losses.values) < 2 * MIN_LOSSES
        ):
            return None
        levels = losses.levels(2 * BLOCKS)
        early, late = levels[1:BLOCKS], levels[BLOCKS:]
        best = min(early, key=lambda level: level.median)
        top = max(abs(losses.values[0]), abs(levels[0].median))
        doubt = FALLEN_ERRORS * math.hypot(levels[0].error, best.error)
        has_fallen = levels[0].median - best.median > max(MIN_FALL * top, doubt)
        if not has_fallen or best.median <= DONE_SHARE * top:
            return None
        noise = 2.0 * max(best.error, *(level.error for level in late))
        if min(level.median for level in late) < best.median - noise - self._thresholds.plateau_change * abs(
            best.median
        ):
            return None
        return self._finding(
            sample,
            levels[-1],
            f"Loss has not improved in the last {losses.span // 2} steps up to step {sample.step}: "
            f"{best.median:.4g} before, {levels[-1].median:.4g} now",
            severity="info",
        )

    def _finding(
        self, sample: Sample, level: Level, message: str, *, severity: Severity = "warning"
    ) -> Finding:
        return Finding(
            kind="loss_plateau",
            severity=severity,
            subject="loss",
            message=message,
            value=level.median,
            threshold=None,
            baseline={"median": level.median, "standard_error": level.error},
            neighbours=tuple(list(self._recent)[-NEIGHBOURS:]),
        )


class _ThinnedLosses:
    """Losses of a whole run, evenly spread, at most `2 * KEPT` of them."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.first_step = 0
        self.span = 0
        self._every, self._offered = 1, 0

    def add(self, step: int, loss: float) -> None:
        if not self.values:
            self.first_step = step
        self.span = step - self.first_step
        if self._offered % self._every == 0:
            self.values.append(loss)
        self._offered += 1
        if len(self.values) >= 2 * KEPT:
            del self.values[1::2]
            self._every *= 2

    def levels(self, blocks: int = BLOCKS) -> list[Level]:
        """Levels of equal parts of the run, the first one first."""
        return [level_of(part) for part in np.array_split(np.array(self.values), blocks)]


def _classes(modules: ModuleSample) -> int | None:
    """How many numbers the model returns for one sample; None where it is not known."""
    units = modules.columns.get("units")
    if units is None or "" not in modules.names:
        return None
    count = float(units[modules.names.index("")])
    return int(count) if count >= 1.0 else None
