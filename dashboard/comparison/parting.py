"""Where two runs first part: the step and the layers at which what both have recorded differs. Pure numpy.

Fed by `journal_steps` or `store_steps`, a window of steps at a time, so that a long run needs no more memory
than a short one. Used by `dashboard diff` and by the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Steps = npt.NDArray[np.int64]
_Index = npt.NDArray[np.intp]

WINDOW: Final = 256
"""Steps in one block; a block holds steps of `[k * WINDOW, (k + 1) * WINDOW)` alone."""
TOLERANCE: Final = 1e-6
"""Largest relative difference that counts as rounding: some 8 units in the last place of a float32."""
OUTCOMES: Final = ("loss", "grad_norm")
"""Scalars that follow from weights and data."""
SETTINGS: Final = ("lr", "samples")
"""Scalars that the script chooses; of the learning rate also ``lr/<group>``."""


def is_compared(name: str) -> bool:
    """Whether a scalar is one that two equal trainings have in common; times and memory are not."""
    return name in OUTCOMES or name in SETTINGS or name.startswith("lr/")


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One scalar at the steps of a block."""

    values: Values
    """(steps,); any value where it was not measured."""
    measured: Mask
    """(steps,)"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepBlock:
    """What one run has recorded at the steps of one window."""

    steps: Steps
    """(steps,) ascending, each once, at least one."""
    scalars: Mapping[str, Series]
    layers: tuple[str, ...]
    """Names, in model order."""
    norms: Values
    """(steps, layers) L2 norm of each layer's gradient."""
    measured: Mask
    """(steps, layers)"""
    pooled: bool = False
    """Only averages over several steps are left, which are not compared."""

    @property
    def window(self) -> int:
        """Number of its window."""
        return int(self.steps[0]) // WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One number that is not the same in both runs."""

    step: int
    name: str
    """Of the scalar, or of the layer; the root's is ""."""
    first: float
    second: float


@dataclass(slots=True)
class StepSpan:
    """Steps of one kind: how many, and from where to where."""

    count: int = 0
    first: int | None = None
    last: int | None = None

    def add(self, steps: Steps) -> None:
        """Take ascending steps in."""
        if len(steps):
            self.count += len(steps)
            self.first = int(steps[0]) if self.first is None else self.first
            self.last = int(steps[-1])


@dataclass(slots=True, kw_only=True)
class Parting:
    """What the comparison of two runs has found, up to the window in which they part."""

    step: int | None = None
    """First step at which loss, gradient norm or a layer's gradient differs; None where none does."""
    scalars: list[Difference] = field(default_factory=list)
    """Loss and gradient norm at that step, where they differ."""
    layers: list[Difference] = field(default_factory=list)
    """Layers at the first step at which one's gradient differs, in backward order: the last layer first."""
    settings: list[Difference] = field(default_factory=list)
    """The first difference of each setting, up to `step`."""
    compared: StepSpan = field(default_factory=StepSpan)
    """Steps of which both have a number, up to `step`."""
    equal: int = 0
    """Of these, the steps before `step`."""
    compared_layers: int = 0
    """Layers of which a gradient norm was compared."""
    only_first: StepSpan = field(default_factory=StepSpan)
    only_second: StepSpan = field(default_factory=StepSpan)
    pooled: StepSpan = field(default_factory=StepSpan)
    """Steps of which only averages are left in at least one of the runs."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing that was compared differs, and something was."""
        return self.step is None and not self.settings and self.compared.count > 0


def differs(first: Values, second: Values, tolerance: float) -> Mask:
    """Return where values differ by more than `tolerance` of the larger one; NaN equals NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        is_close = np.abs(first - second) <= tolerance * np.maximum(np.abs(first), np.abs(second))
    is_rounding = np.isfinite(first) & np.isfinite(second) & is_close
    is_same: Mask = (first == second) | (np.isnan(first) & np.isnan(second)) | is_rounding
    return ~is_same


def find_parting(
    first: Iterator[StepBlock], second: Iterator[StepBlock], *, tolerance: float = TOLERANCE
) -> Parting:
    """Compare two runs step by step, up to the window in which they part.

    Args:
        first: blocks of one run, window after window.
        second: likewise of the other.
        tolerance: relative difference up to which two numbers are the same.
    """
    found = Parting()
    one, other = next(first, None), next(second, None)
    while found.step is None and (one is not None or other is not None):
        if other is None or (one is not None and one.window < other.window):
            assert one is not None
            found.only_first.add(one.steps)
            one = next(first, None)
        elif one is None or other.window < one.window:
            found.only_second.add(other.steps)
            other = next(second, None)
        else:
            _compare(found, one, other, tolerance)
            one, other = next(first, None), next(second, None)
    return found


def _compare(found: Parting, one: StepBlock, other: StepBlock, tolerance: float) -> None:
    """Take in a window that both have."""
    steps, at, at_other = np.intersect1d(one.steps, other.steps, assume_unique=True, return_indices=True)
    found.only_first.add(np.setdiff1d(one.steps, steps, assume_unique=True))
    found.only_second.add(np.setdiff1d(other.steps, steps, assume_unique=True))
    if one.pooled or other.pooled:
        found.pooled.add(steps)
        return
    pairs = _Pairs(one, other, steps, at, at_other)
    scalars = _scalar_differences(pairs, tolerance)
    known = {difference.name for difference in found.settings}
    outcomes = [difference for difference in scalars if difference.name in OUTCOMES]
    found.layers = _layer_differences(pairs, tolerance)
    found.compared_layers = max(found.compared_layers, pairs.compared_layers)
    found.step = min((each.step for each in (*outcomes, *found.layers)), default=None)
    found.scalars = [each for each in outcomes if each.step == found.step]
    settings = [each for each in scalars if each.name not in (*OUTCOMES, *known)]
    found.settings += [each for each in settings if found.step is None or each.step <= found.step]
    compared = steps[pairs.is_compared]
    end = len(compared) if found.step is None else int(np.searchsorted(compared, found.step))
    found.equal += end
    found.compared.add(compared[: end + 1])


class _Pairs:
    """What two blocks have of the same steps; notes what of it was compared."""

    def __init__(self, one: StepBlock, other: StepBlock, steps: Steps, at: _Index, at_other: _Index) -> None:
        self.one, self.other, self.steps = one, other, steps
        self.at, self.at_other = at, at_other
        self.is_compared: Mask = np.zeros(len(steps), dtype=np.bool_)
        """(steps,) whether any number was."""
        self.compared_layers = 0


def _scalar_differences(pairs: _Pairs, tolerance: float) -> list[Difference]:
    """Return the first difference of each scalar that both have."""
    found = []
    for name in sorted(pairs.one.scalars.keys() & pairs.other.scalars.keys()):
        mine, theirs = pairs.one.scalars[name], pairs.other.scalars[name]
        first, second = mine.values[pairs.at], theirs.values[pairs.at_other]
        measured = mine.measured[pairs.at] & theirs.measured[pairs.at_other]
        pairs.is_compared |= measured
        is_other = differs(first, second, tolerance) & measured
        if is_other.any():
            row = int(np.argmax(is_other))
            step, values = int(pairs.steps[row]), (float(first[row]), float(second[row]))
            found.append(Difference(step=step, name=name, first=values[0], second=values[1]))
    return found


def _layer_differences(pairs: _Pairs, tolerance: float) -> list[Difference]:
    """Return the layers that differ at the first step at which one does, the last layer first."""
    one, other = pairs.one, pairs.other
    place = {name: index for index, name in enumerate(other.layers)}
    shared = np.array([index for index, name in enumerate(one.layers) if name in place], dtype=np.intp)
    columns = np.array([place[one.layers[index]] for index in shared], dtype=np.intp)
    mine, theirs = np.ix_(pairs.at, shared), np.ix_(pairs.at_other, columns)
    first, second = one.norms[mine], other.norms[theirs]
    measured = one.measured[mine] & other.measured[theirs]
    pairs.is_compared |= measured.any(axis=1)
    pairs.compared_layers = int(measured.any(axis=0).sum())
    is_other = differs(first, second, tolerance) & measured
    rows = np.flatnonzero(is_other.any(axis=1))
    if not len(rows):
        return []
    row = int(rows[0])
    return [
        Difference(
            step=int(pairs.steps[row]),
            name=one.layers[shared[column]],
            first=float(first[row, column]),
            second=float(second[row, column]),
        )
        for column in np.flatnonzero(is_other[row])[::-1].tolist()
    ]
