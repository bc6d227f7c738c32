"""Parameter not updated: it has a gradient, others move, and it stays exactly what it was.

It is in no optimizer, in a group with learning rate 0, or its updates are lost in rounding. Judged by the
norms of the parameters, which tell of all updates between two samples, not of the sampled one alone.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from .base import Finding
from .cause_advice import LOST_IN_ROUNDING, MEANT, NO_GRADIENT, NOT_IN_OPTIMIZER
from .medians import median_of
from .sample import Floats, Sample, Succession
from .sampled_thresholds import SampledThresholds

Flags = npt.NDArray[np.bool_]
MIN_INTERVALS: Final = 2
SIZABLE_SHARE: Final = 1e-3
"""Of the median gradient norm. A bias in front of a normalisation or of a softmax has a gradient of rounding
noise, which changes it by less than a rounding unit."""
MIN_TRAVEL: Final = 1e-5
"""Relative change of the others' norms over the time: below it, so small a step may be lost in rounding."""
IDLE_GROUP_FACTOR: Final = 5
"""Where a group's learning rate is 0 now, or an optimizer has yet to step, it may be about to join in."""
ROUNDING: Final = 2.0**-24
"""Half the distance of float32 numbers, relative to them: a smaller update of every element changes none."""
LOST_SHARE: Final = 1e-2
"""Gradients relative to their parameters, as a share of those that move: above it they are ordinary."""
ALL_FACTOR: Final = 1.5
"""Patience with a model that does not move at all ..."""
UNSEEN_FACTOR: Final = 2.5
"""... and with one whose gradients were not even seen."""


class NotUpdatedDetector:
    """Emits `parameter_not_updated`: a warning; information where it looks like a frozen backbone.

    Only a parameter that has never moved since it was first seen counts: alternating optimizers are healthy.
    """

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._patience = thresholds.stuck_steps
        self._succession = Succession()
        self._standing: list[Finding] = []
        self._norm: Floats | None = None
        self._waiting: frozenset[str] = frozenset()
        self._reset(0)

    def _reset(self, parameters: int) -> None:
        self._standing, self._norm = [], None
        self._late: npt.NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        self._affected: tuple[str, ...] = ()
        self._step = 0
        self._is_sizable: Flags = np.zeros(parameters, dtype=np.bool_)
        self._has_moved: Flags = np.zeros(parameters, dtype=np.bool_)
        self._intervals = np.zeros(parameters, dtype=np.int64)
        self._steps = np.zeros(parameters, dtype=np.int64)
        self._travel: Floats = np.zeros(parameters)
        self._idle_intervals = self._idle_steps = 0
        self._skipped = 0.0

    def note_waiting(self, names: frozenset[str]) -> None:
        """These are in optimizers that have not made a step yet."""
        self._waiting = names

    def observe(self, sample: Sample) -> list[Finding]:
        """Return what is known to stand still; between two measurements of the norms the last verdict."""
        if self._succession.begins_anew(sample):
            self._reset(len(sample.parameter_names))
        if sample.update_ratio is not None:
            self._has_moved |= sample.update_ratio > 0.0
        if sample.parameter_norm is not None:
            self._standing = self._judge(sample, sample.parameter_norm)
        return list(self._standing)

    def _judge(self, sample: Sample, norm: Floats) -> list[Finding]:
        before, sizable, steps = self._norm, self._is_sizable, sample.step - self._step
        skipped = sample.scalars.get("amp_skipped_updates", 0.0)
        has_skipped = skipped != self._skipped
        self._norm, self._step, self._skipped = norm, sample.step, skipped
        if self._has_moved.all():
            return []
        self._is_sizable = _sizable(sample)
        if before is None or steps == 0:
            return []
        changed = _have_changed(before, norm)
        self._has_moved |= changed
        if not changed.any():
            return self._idle(sample, sizable, steps, has_skipped=has_skipped)
        self._idle_intervals = self._idle_steps = 0
        counted = ~self._has_moved & sizable
        if not counted.any():
            return []
        with np.errstate(all="ignore"):
            travel = np.abs(norm[changed] - before[changed]) / np.maximum(norm[changed], before[changed])
        self._intervals += counted
        self._steps += steps * counted
        if not math.isfinite(travel.sum()):
            travel = np.nan_to_num(travel)
        self._travel += median_of(travel) * counted
        may_wait: bool | list[bool] = _has_idle_group(sample)
        if not may_wait and self._waiting:
            may_wait = [name in self._waiting for name in sample.parameter_names]
        patience = np.where(may_wait, self._patience * IDLE_GROUP_FACTOR, self._patience)
        is_late = (self._intervals >= MIN_INTERVALS) & (self._steps >= patience)
        late = np.flatnonzero(is_late & ~self._has_moved & (self._travel >= MIN_TRAVEL))
        return [self._finding(sample, late)] if len(late) else []

    def _idle(self, sample: Sample, sizable: Flags, steps: int, *, has_skipped: bool) -> list[Finding]:
        """Judge a model of which nothing moved, though an optimizer that has it steps.

        Where none does, `WiringDetector` knows whether one has been forgotten; a teacher, or a model whose
        gradients are only looked at, has none, and is meant to stay what it is.
        """
        rates = _rates(sample)
        may_rest = has_skipped or not any(rates)
        # A step that no backward of the model belongs to is one of the optimizer alone.
        is_cut_off = sample.scalars.get("samples", 0.0) > 0.0 or sample.loss is not None
        is_due = sizable.any() or (is_cut_off and _all_missing(sample))
        if may_rest or self._has_moved.any() or not is_due:
            return []
        self._idle_intervals += 1
        self._idle_steps += steps
        factor = ALL_FACTOR if sizable.any() else UNSEEN_FACTOR
        if self._idle_intervals < MIN_INTERVALS or self._idle_steps < factor * self._patience:
            return []
        affected = np.flatnonzero(sizable) if sizable.any() else np.arange(len(sizable))
        if sizable.any():
            seen = f"although {len(affected)} of {len(sizable)} have a gradient"
        elif sample.loss is not None:
            seen = "although backward is called and the optimizer steps"
        else:
            seen = "because no gradient reaches any of them, although the optimizer steps"
        return [
            Finding(
                kind="parameter_not_updated",
                severity="warning",
                subject=sample.parameter_names[int(affected[0])],
                message=f"No parameter has changed in the {self._idle_steps} steps up to step {sample.step}, "
                f"{seen}",
                value=0.0,
                threshold=0.0,
                baseline={"steps": float(self._idle_steps)},
                affected=tuple(sample.parameter_names[i] for i in affected),
                advice=NOT_IN_OPTIMIZER if sizable.any() else NO_GRADIENT,
            )
        ]

    def _finding(self, sample: Sample, late: npt.NDArray[np.intp]) -> Finding:
        names = sample.parameter_names
        first = int(late[0])
        # While it lasts it is found at each measurement: a thousand names are looked up once.
        if not np.array_equal(late, self._late):
            self._late, self._affected = late, tuple(names[i] for i in late.tolist())
        more = f" and {len(late) - 1} more" if len(late) > 1 else ""
        is_backbone = _is_long_prefix(sample.layer_of, late)
        lost = _lost(sample, late)
        how = "; the optimizer seems to have only what follows" if is_backbone else " while others moved"
        return Finding(
            kind="parameter_not_updated",
            severity="info" if is_backbone else "warning",
            subject=names[first],
            message=f"`{names[first]}`{more} of {len(names)} parameters had a gradient and did not change in "
            f"the {int(self._steps[first])} steps up to step {sample.step}{how}{lost}",
            value=0.0,
            threshold=0.0,
            baseline={"steps": float(self._steps[first])},
            affected=self._affected,
            advice=LOST_IN_ROUNDING if lost else NOT_IN_OPTIMIZER + MEANT,
        )


def _have_changed(before: Floats, norm: Floats) -> Flags:
    """(parameters,) whose norm is another one; those of steps that C has followed are of single precision."""
    single = before.astype(np.float32), norm.astype(np.float32)
    if (single[0] == before).all() or (single[1] == norm).all():
        return np.not_equal(single[0], single[1], dtype=np.bool_)
    return np.not_equal(norm, before, dtype=np.bool_)


def _sizable(sample: Sample) -> Flags:
    """(parameters,) whose gradient is none of rounding noise."""
    if sample.grad_norm is None:
        return np.zeros(len(sample.parameter_names), dtype=np.bool_)
    grad = sample.grad_norm if sample.missing is None else np.where(sample.missing, 0.0, sample.grad_norm)
    present = grad > 0.0
    if not present.any() or not np.isfinite(grad).all():
        return np.zeros(len(grad), dtype=np.bool_)
    sizable: Flags = present & (grad >= SIZABLE_SHARE * median_of(grad[present]))
    return sizable


def _lost(sample: Sample, late: npt.NDArray[np.intp]) -> str:
    """Say so where a step along the gradient, of any learning rate of the run, is lost in rounding."""
    rates, grad, norm = _rates(sample), sample.grad_norm, sample.parameter_norm
    if grad is None or norm is None or not rates or not all(rates):
        return ""
    if not (max(rates) * grad[late] < ROUNDING * norm[late]).all():
        return ""
    others = (grad > 0.0) & (norm > 0.0)
    others[late] = False
    # Adam's steps do not shrink with the gradient: of ordinary ones at a low rate none is lost.
    if not others.any() or (grad[late] / norm[late]).max() > LOST_SHARE * median_of(
        grad[others] / norm[others]
    ):
        return ""
    return (
        f"; their gradients are so small (the largest {grad[late].max():.2g}) that a step of learning rate "
        f"{max(rates):g} along them is lost in rounding: the gradient vanishes on its way to them"
    )


def _all_missing(sample: Sample) -> bool:
    return sample.missing is not None and len(sample.missing) > 0 and bool(sample.missing.all())


def _rates(sample: Sample) -> list[float]:
    return [value for name, value in sample.scalars.items() if name == "lr" or name.startswith("lr/")]


def _has_idle_group(sample: Sample) -> bool:
    rates = _rates(sample)
    return any(rate == 0.0 for rate in rates) and any(rates)


def _is_long_prefix(layer_of: npt.NDArray[np.intp], late: npt.NDArray[np.intp]) -> bool:
    """Whether all of the first layers, and more than half of the parameters, stand still, and no other."""
    return bool(len(late) > len(layer_of) / 2 and late[-1] == len(late) - 1)
