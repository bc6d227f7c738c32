"""Layers that say nothing any more: units that are dead, activations at their limits.

Judged on sampled steps. 60 % zeros out of a ReLU are healthy: a unit is dead only if it is zero in every
element of many samples, and a layer only if most of its units are and that has become so.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from .base import Finding
from .layers import and_more, in_words
from .sample import Floats, ModuleSample, ModuleSuccession, Sample
from .sampled_thresholds import SampledThresholds

Flags = npt.NDArray[np.bool_]
MIN_UNITS: Final = 8
"""Of fewer units, most may be idle by chance."""
RISE: Final = 0.3
"""What is high must have risen by this much (0-1) ..."""
BORN_DEAD_SHARE: Final = 0.9
"""... unless it is the output of a ReLU, which is to pass half of what it gets, from the start."""
ALIVE_PATIENCE: Final = 5
"""Samples of nothing but zeros for a layer that has been alive: a margin may be kept for a while."""
RELU_TYPES: Final = frozenset({"ReLU", "ReLU6", "Threshold"})
BORN_SHARE: Final = 2 / 3
"""Of `saturated_share`: so many of a tanh's outputs, at both limits, are too many for an initialization."""
BORN_SPREAD: Final = 0.6
"""Deviation of outputs at both limits; at a single one, the unit is a gate that was closed on purpose."""
BORN_STEPS: Final = 20
BORN_TYPES: Final = frozenset({"Tanh", "RNN"})
SOFT_TYPES: Final = frozenset({"Sigmoid", "Tanh", "LSTM", "GRU", "RNN"})
"""Saturated from the start is a fault in these; the hard ones are made to reach their limits."""
HARD_TYPES: Final = frozenset({"Hardtanh", "Hardsigmoid", "ReLU6"})
_SIGNATURE: Final = ("activation_rms", "activation_mean", "activation_max_abs")


class DeadUnitDetector:
    """Emits `dead_units`, a warning."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._succession = ModuleSuccession()
        self._standing: list[Finding] = []
        self._reset(())

    def _reset(self, types: tuple[str, ...]) -> None:
        self._standing = []
        self._is_relu: Flags = np.array([name in RELU_TYPES for name in types], dtype=np.bool_)
        self._lowest: Floats = np.full(len(types), np.nan)
        self._lowest_zeros: Floats = np.full(len(types), np.nan)
        self._dead_run = np.zeros(len(types), dtype=np.int64)
        self._zero_run = np.zeros(len(types), dtype=np.int64)

    def observe(self, sample: Sample) -> list[Finding]:
        """Return the layers most of whose units are dead; between measurements the last verdict."""
        modules = sample.modules
        if modules is None:
            return list(self._standing)
        if self._succession.begins_anew(modules, sample.step):
            self._reset(modules.types)
        units, zeros = modules.columns.get("units"), modules.columns.get("activation_zero_fraction")
        if units is None or sample.loss == 0.0:
            return list(self._standing)
        is_wide = units >= MIN_UNITS
        silent = self._all_zero(zeros, is_wide)
        late = silent | self._mostly_dead(modules, is_wide)
        self._standing = [self._finding(sample, modules, late, silent)] if late.any() else []
        return list(self._standing)

    def _mostly_dead(self, modules: ModuleSample, is_wide: Flags) -> Flags:
        """Layers whose share of dead units has grown to a large one, or was one from the start."""
        dead = modules.columns.get("dead_units")
        if dead is None:
            return np.zeros(len(is_wide), dtype=np.bool_)
        with np.errstate(all="ignore"):
            share = np.where(is_wide, dead / modules.columns["units"], np.nan)
        self._lowest = np.fmin(self._lowest, share)
        has_risen = (share >= self._thresholds.dead_share) & (share - self._lowest >= RISE)
        high = has_risen | (self._is_relu & (share >= max(BORN_DEAD_SHARE, self._thresholds.dead_share)))
        self._dead_run = np.where(np.isnan(share), self._dead_run, np.where(high, self._dead_run + 1, 0))
        late: Flags = high & (self._dead_run >= 2)
        return late

    def _all_zero(self, zeros: Floats | None, is_wide: Flags) -> Flags:
        """ReLUs that give nothing but zeros: known long before the window of dead units is full."""
        if zeros is None:
            return np.zeros(len(is_wide), dtype=np.bool_)
        zero = is_wide & self._is_relu & (zeros == 1.0)
        self._lowest_zeros = np.fmin(self._lowest_zeros, zeros)
        self._zero_run = np.where(np.isnan(zeros), self._zero_run, np.where(zero, self._zero_run + 1, 0))
        patience = np.where(self._lowest_zeros < 1.0, ALIVE_PATIENCE, self._thresholds.sustained_samples)
        late: Flags = zero & (self._zero_run >= patience)
        return late

    def _finding(self, sample: Sample, modules: ModuleSample, late: Flags, silent: Flags) -> Finding:
        rows = innermost(modules.names, np.flatnonzero(late))
        row, units = rows[0], float(modules.columns["units"][rows[0]])
        dead = units if silent[row] else float(modules.columns["dead_units"][row])
        before = float(self._lowest[row])
        grown = f"; at best {before:.0%} were" if before < dead / units else ""
        return Finding(
            kind="dead_units",
            severity="warning",
            subject=modules.names[row],
            message=f"{dead:.0f} of {units:.0f} units of {in_words(modules.names[row])} "
            f"({modules.types[row]}) give nothing but 0 at step {sample.step}"
            f"{and_more(len(rows) - 1)}{grown}",
            value=dead / units,
            threshold=self._thresholds.dead_share,
            baseline=None if np.isnan(before) else {"lowest": before},
            affected=tuple(modules.names[i] for i in rows),
        )


class SaturationDetector:
    """Emits `saturated_activation`, a warning. What the model returns may well be at its limits."""

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._thresholds = thresholds
        self._succession = ModuleSuccession()
        self._standing: list[Finding] = []
        self._reset(())

    def _reset(self, types: tuple[str, ...]) -> None:
        self._standing = []
        self._is_soft: Flags = np.array([name in SOFT_TYPES for name in types], dtype=np.bool_)
        self._is_hard: Flags = np.array([name in HARD_TYPES for name in types], dtype=np.bool_)
        self._may_be_born: Flags = np.array([name in BORN_TYPES for name in types], dtype=np.bool_)
        self._lowest: Floats = np.full(len(types), np.nan)
        self._run = np.zeros(len(types), dtype=np.int64)

    def observe(self, sample: Sample) -> list[Finding]:
        """Return the hidden layers that are at their limits; between measurements the last verdict."""
        modules = sample.modules
        if modules is None:
            return list(self._standing)
        if self._succession.begins_anew(modules, sample.step):
            self._reset(modules.types)
        share = modules.columns.get("activation_saturated_fraction")
        if share is None or (not self._is_soft.any() and not self._is_hard.any()):
            return list(self._standing)
        self._lowest = np.fmin(self._lowest, share)
        high = (share >= self._thresholds.saturated_share) & _is_wide(modules, len(share))
        high &= self._is_soft | (self._is_hard & (share - self._lowest >= RISE))
        high |= self._is_born(sample, modules, share)
        if high.any():
            high &= ~returned_by_model(modules)
        self._run = np.where(np.isnan(share), self._run, np.where(high, self._run + 1, 0))
        late = high & (self._run >= self._thresholds.sustained_samples)
        self._standing = [self._finding(sample, modules, share, late)] if late.any() else []
        return list(self._standing)

    def _is_born(self, sample: Sample, modules: ModuleSample, share: Floats) -> Flags:
        """Layers put at both of their limits by the initialization, or by the scale of the input."""
        spread = modules.columns.get("activation_std")
        if spread is None or sample.step > BORN_STEPS:
            return np.zeros(len(share), dtype=np.bool_)
        born = self._may_be_born & (spread >= BORN_SPREAD) & _is_wide(modules, len(share))
        return born & (self._lowest >= BORN_SHARE * self._thresholds.saturated_share)

    def _finding(self, sample: Sample, modules: ModuleSample, share: Floats, late: Flags) -> Finding:
        rows = np.flatnonzero(late)
        row = int(rows[0])
        before = float(self._lowest[row])
        return Finding(
            kind="saturated_activation",
            severity="warning",
            subject=modules.names[row],
            message=f"{share[row]:.0%} of the outputs of {in_words(modules.names[row])} "
            f"({modules.types[row]}) are at its limits at step {sample.step}"
            f"{and_more(len(rows) - 1)}; at best {before:.0%} were",
            value=float(share[row]),
            threshold=self._thresholds.saturated_share,
            baseline={"lowest": before},
            affected=tuple(modules.names[i] for i in rows),
        )


def innermost(names: tuple[str, ...], rows: npt.NDArray[np.intp]) -> list[int]:
    """Leave out modules that contain another one of `rows`: they hand on its output."""
    around: set[str] = set()
    for row in rows:
        name = names[row]
        # What is around a module that was met before is known.
        while name and (name := name.rpartition(".")[0]) not in around:
            around.add(name)
    return [int(row) for row in rows if names[row] not in around]


def returned_by_model(modules: ModuleSample) -> Flags:
    """(modules,) whose output the model returns as it is: their statistics are those of the root.

    Where the root itself is not called (two models below one), those of its children stand for it.
    """
    columns = [modules.columns[name] for name in _SIGNATURE if name in modules.columns]
    if not columns:
        return np.zeros(len(modules.names), dtype=np.bool_)
    table = np.stack(columns)
    outer = [row for row, name in enumerate(modules.names) if not name]
    if not outer or np.isnan(table[:, outer[0]]).any():
        outer = [row for row, name in enumerate(modules.names) if name and "." not in name]
    with np.errstate(all="ignore"):
        same: Flags = (table[:, :, None] == table[:, None, outer]).all(axis=0).any(axis=1)
    return same


def _is_wide(modules: ModuleSample, count: int) -> Flags:
    units = modules.columns.get("units")
    return np.ones(count, dtype=np.bool_) if units is None else units >= MIN_UNITS
