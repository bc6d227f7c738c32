"""What went out of its usual range shortly before an event, and what of it moved first.

Given every step that the detectors judge; asked only when an event begins. It tells an order in time, not a
cause: "loss 40x its median at step 812 <- gradients at step 811: `blocks.4` 55x its median, `blocks.2` 12x".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..wire.message_lines import EARLIER, MOVED
from .base import Floats, Observation, ObservationBatch
from .changes import Change, phase_change, rate_jump
from .jumps import BEFORE, Jump
from .layers import LayerIndex, and_more, in_words
from .medians import median_of, median_of_known
from .weight_sizes import WeightSizes

_HISTORY_STEPS: Final = 96
_RECENT_STEPS: Final = 12
"""How many steps before the event are searched; those before them are what is usual."""
_LEAST_HISTORY: Final = 16
_TOGETHER: Final = 4
_LARGE: Final = 8192
_MADS: Final = 8.0
_FACTOR: Final = 3.0
"""A value is out of its range above median + so many MADs of its logarithm, and so many times its median."""
_JUMP_STEPS: Final = 32
"""How long before the event a lasting jump may have begun."""
_MOST_JUMPS: Final = 64
_NEGLIGIBLE_SHARE: Final = 1e-5
"""A layer whose norm is a smaller share of the model's holds rounding noise: its jumps mean nothing."""
_NAMED: Final = 3
_ORDER: Final = ("input", "loss", "gradient")
_GAUSSIAN: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Move:
    """The first step at which a series was out of its usual range."""

    series: str
    step: int
    times: float
    """Value over the median."""
    what: Literal["input", "loss", "gradient"] = "gradient"


@dataclass(frozen=True, slots=True)
class _Steps:
    """Successive steps."""

    numbers: list[int]
    losses: Floats
    norms: npt.NDArray[np.float32]
    """(steps, layers)"""
    rates: Floats
    """The highest learning rate of each; NaN where it is not known."""
    lowest: Floats
    """The lowest; likewise."""
    end: int
    """How many steps there were up to the last of these."""


class _Told(NamedTuple):
    """A jump, and the medians of its series before and after."""

    jump: Jump
    name: str
    before: float
    after: float


class RecentSteps:
    """Loss and layers' gradient norms of the newest steps of one model."""

    def __init__(self) -> None:
        self._unseen: list[Observation | ObservationBatch] = []
        self._held: deque[_Steps] = deque()
        self._layers = LayerIndex()
        self._names: tuple[str, ...] = ()
        self._jumps: deque[Move] = deque(maxlen=_MOST_JUMPS)
        self._noted: deque[Change] = deque(maxlen=_TOGETHER)
        self._is_training: bool | None = None
        self.weights = WeightSizes()

    def note_level(self, step: int, level: str) -> None:
        """Somebody has set another level."""
        self._noted.append(Change("level", step, f"-> {level}"))

    def note_mode(self, step: int, *, is_training: bool) -> None:
        """Say in which mode the model was in a step; others are in that of the last."""
        was_training, self._is_training = self._is_training, is_training
        if was_training is not None and was_training != is_training:
            modes = "eval -> train" if is_training else "train -> eval"
            self._noted.append(Change("mode", step, modes))

    def note(self, observed: Observation | ObservationBatch) -> None:
        """Take the newest step or steps; those of another layout are forgotten."""
        # Seldom asked for: arranged a few together, whose first one alone meets empty caches. Large ones
        # are not kept that long: of 2,000 parameters each holds 0.4 MiB.
        self._unseen.append(observed)
        self.weights.note(observed)
        is_large = observed.grad_norm is not None and observed.grad_norm.size >= _LARGE
        if is_large or len(self._unseen) >= _TOGETHER:
            self._arrange()

    def _arrange(self) -> None:
        unseen, self._unseen = self._unseen, []
        for observed in unseen:
            self._take(observed)

    def _take(self, observed: Observation | ObservationBatch) -> None:
        if isinstance(observed, ObservationBatch):
            one, steps, losses = observed.at(0), list(observed.steps), observed.losses
            rates = observed.highest_rates or [None] * len(steps)
            lowest = observed.lowest_rates or [None] * len(steps)
        else:
            one, steps, losses = observed, [observed.step], [observed.loss]
            rates, lowest = [observed.highest_rate], [observed.lowest_rate]
        known = len(self._layers.layers) if self._held else 0

        def begin() -> None:
            self._note_phase(known, steps[0], rates[0])
            self._held.clear()
            self._jumps.clear()

        is_again = bool(self._held) and steps[0] <= self._held[-1].numbers[-1]
        self._layers.update(one, begin, is_again=is_again)
        if isinstance(observed, ObservationBatch):
            norms = self._layers.norms_of(observed)
        else:
            norms = self._layers.norms(observed)[None]
            if np.isnan(norms).any() and observed.grad_norm is not None:
                # What is NaN is kept as Inf, so that it is not taken for what is not known.
                ones = np.ones_like(observed.grad_norm)
                has_gradient = ~np.isnan(self._layers.norms(replace(observed, grad_norm=ones)))
                norms = np.where(np.isnan(norms) & has_gradient, np.inf, norms)
        self._names = one.layer_names
        loss = _known(losses)
        loss[[value is not None and math.isnan(value) for value in losses]] = np.inf
        end = len(steps) + (self._held[-1].end if self._held else 0)
        self._held.append(_Steps(steps, loss, norms.astype(np.float32), _known(rates), _known(lowest), end))
        while end - self._held[0].end >= _HISTORY_STEPS:
            self._held.popleft()

    def _note_phase(self, known: int, step: int, rate: float | None) -> None:
        """Note that other layers are trained from a step on, before those of before are forgotten.

        Args:
            known: how many layers there were; 0 where no steps are held.
            step: its number.
            rate: the highest learning rate at it.
        """
        if not self._held or step <= (last := self._held[-1].numbers[-1]):
            return
        if known != (now := len(self._layers.layers)):
            self._noted.append(Change("phase", step, f"(layers that are trained: {known} -> {now})"))
        jump = rate_jump([last, step], np.append(self._held[-1].rates[-1:], _known([rate])), 1)
        if jump is not None:
            self._noted.append(jump)

    def explain(self, step: int) -> list[Move]:
        """Return what left its usual range in the steps up to `step`: the earliest first, then the largest.

        Within a step the loss comes first: its gradients are computed from it.
        """
        self._arrange()
        numbers = [number for held in self._held for number in held.numbers if number <= step]
        count = len(numbers)
        if count < _LEAST_HISTORY + 1:
            return []
        losses = np.concatenate([held.losses for held in self._held])[:count]
        norms = np.concatenate([held.norms for held in self._held])[:count].astype(np.float64)
        first = max(_LEAST_HISTORY, count - _RECENT_STEPS)
        names = tuple(self._names[index] for index in self._layers.layers)
        moves = _moves(("loss",), numbers, losses[:, None], first, what="loss")
        moves += _moves(names, numbers, norms, first, what="gradient")
        known = {(move.what, move.series): move.step for move in moves}
        for jump in self._jumps:
            if step - _JUMP_STEPS <= jump.step < known.get((jump.what, jump.series), step + 1):
                moves.append(jump)
        return in_order(moves)

    def changes(self, step: int) -> list[Change]:
        """Return what was set otherwise in the steps up to `step`."""
        self._arrange()
        found = [change for change in self._noted if step - _RECENT_STEPS <= change.step <= step]
        count = sum(number <= step for held in self._held for number in held.numbers)
        if count < 2:
            return found
        numbers = [number for held in self._held for number in held.numbers][:count]
        rates = np.concatenate([held.rates for held in self._held])[:count]
        has_gradient = ~np.isnan(np.concatenate([held.norms for held in self._held])[:count])
        first = max(1, count - _RECENT_STEPS)
        jump = rate_jump(numbers, rates, first)
        if jump is None:
            lowest = np.concatenate([held.lowest for held in self._held])[:count]
            jump = rate_jump(numbers, lowest, first, of=" (the lowest of all groups)")
        made = jump, phase_change(numbers, has_gradient, first)
        return found + [change for change in made if change is not None]

    def are_all(self, names: Sequence[str]) -> bool:
        """Whether these are all layers of the newest steps, or all parameters whose norms are known."""
        return len(names) > 1 and len(names) >= min(
            len(self._names) or math.inf, self.weights.count or math.inf
        )

    def note_jumps(self, jumps: Sequence[Jump]) -> str | None:
        """Take lasting jumps of the steps that were noted last; return what to say of them, if anything.

        They count among what moved before an event, too.

        Args:
            jumps: as they were found; those of layers that hold rounding noise are dropped.
        """
        if jumps:
            self._arrange()
        told = []
        for jump in sorted(jumps, key=lambda jump: (jump.step, min(jump.series, 2), -jump.mads)):
            levels = self._levels(jump)
            if levels is None:
                continue
            before, after = levels
            told.append(_Told(jump, self._series(jump), before, after))
            if jump.series != 1 and before > 0.0:
                what: Literal["loss", "gradient"] = "gradient" if jump.series else "loss"
                self._jumps.append(Move(told[-1].name, jump.step, after / before, what))
        return _in_words(told) if told else None

    def _levels(self, jump: Jump) -> tuple[float, float] | None:
        """Medians of a series before and after it has jumped; None where that means nothing."""
        numbers = np.array([number for held in self._held for number in held.numbers])
        norms = np.concatenate([held.norms for held in self._held]).astype(np.float64)
        totals = np.sqrt(np.nansum(norms**2, axis=1))
        losses = np.concatenate([held.losses for held in self._held])
        values = (losses, totals, *norms.T)[jump.series]
        known = np.isfinite(values)
        before = np.flatnonzero(known & (numbers < jump.step))[-BEFORE:]
        after = np.flatnonzero(known & (numbers >= jump.step) & (numbers <= jump.found))
        if not len(before) or not len(after):
            return None
        level = float(median_of(values[after]))
        if jump.series > 1 and not level > _NEGLIGIBLE_SHARE * float(median_of(totals[after])):
            return None
        return float(median_of(values[before])), level

    def _series(self, jump: Jump) -> str:
        if jump.series < 2:
            return "loss"
        return self._names[int(self._layers.layers[jump.series - 2])]


def in_order(moves: Iterable[Move]) -> list[Move]:
    """The earliest first; within a step what the others are computed from, then the largest."""
    return sorted(moves, key=lambda move: (move.step, _ORDER.index(move.what), -move.times))


def _known(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _moves(
    names: tuple[str, ...],
    steps: list[int],
    values: Floats,
    first: int,
    *,
    what: Literal["loss", "gradient"],
) -> list[Move]:
    """The first step from `first` on at which each series, a column, is above its range of before."""
    with np.errstate(all="ignore"):
        positive = np.where(values > 0.0, values, np.nan)
        usual = np.where(np.isfinite(positive[:first]), np.log(positive[:first]), np.nan)
        known = np.isfinite(usual).sum(axis=0) >= _LEAST_HISTORY // 2
        usual = np.where(known, usual, 0.0)
        median = median_of_known(usual)
        mad = _GAUSSIAN * median_of_known(np.abs(usual - median))
        limit = median + np.maximum(_MADS * mad, np.log(_FACTOR))
        # Inf, which stands for NaN too, is above every range; what is not known is not.
        recent = values[first:]
        is_out = known & ((np.log(positive[first:]) > limit) | np.isinf(recent))
        moved = np.flatnonzero(is_out.any(axis=0))
    at = is_out.argmax(axis=0)
    found = []
    for column in moved.tolist():
        value, row = recent[at[column], column], int(at[column])
        times = float(value / np.exp(median[column]))
        found.append(Move(names[column], steps[first + row], times, what))
    return found


def _in_words(told: list[_Told]) -> str:
    """Say what has jumped first, from where to where, and which layers with it."""
    jump, name, before, after = told[0]
    first = {0: "the loss", 1: "the norm of the whole gradient"}
    layers = list(dict.fromkeys(other.name for other in told[1:] if other.jump.series > 1))
    others = f", with the gradient of {in_words(layers[0])}{and_more(len(layers) - 1)}" if layers else ""
    series = first.get(jump.series, f"the gradient norm of {in_words(name)}")
    return (
        f"{series} jumped at step {jump.step}, from {before:.4g} to {after:.4g} ({jump.mads:.3g} MADs)"
        f"{others}, and stayed there up to step {jump.found}"
    )


def chain(moves: list[Move], changes: Sequence[Change] = ()) -> str | None:
    """Write the moves as one line, the latest first; None where they tell no order.

    A NaN reaches everything within its step, so steps on which all is lost say nothing of the order.

    Args:
        moves: of what was measured.
        changes: what was set otherwise meanwhile; one alone is told, too.
    """
    is_ordered = len({move.step for move in moves}) > 1 or any(np.isfinite(move.times) for move in moves)
    if not changes and (len(moves) < 2 or not is_ordered):
        return None
    parts = []
    for step in sorted({m.step for m in moves} | {change.step for change in changes}, reverse=True):
        here = [move for move in moves if move.step == step]
        set_here = [change for change in changes if change.step == step]
        # A rate is that of the update, which comes last in a step.
        parts += [str(change) for change in set_here if change.what == "learning rate"]
        if layers := [move for move in here if move.what == "gradient"]:
            parts.append(f"gradients at step {step}: {_layers_in_words(layers)}")
        parts += [f"loss {_times(move)} at step {step}" for move in here if move.what == "loss"]
        parts += [
            f"largest element of input {move.series} {_times(move)} at step {step}"
            for move in here
            if move.what == "input"
        ]
        parts += [str(change) for change in set_here if change.what != "learning rate"]
    return MOVED + EARLIER.join(parts)


def _layers_in_words(moves: list[Move]) -> str:
    named = [f"{in_words(move.series)} {_times(move)}" for move in moves[:1]]
    named += [f"{in_words(move.series)} {_short_times(move)}" for move in moves[1:_NAMED]]
    more = len(moves) - _NAMED
    return ", ".join(named) + (f", and {more} other layer{'s' if more > 1 else ''}" if more > 0 else "")


def _times(move: Move) -> str:
    return f"{_short_times(move)} its median" if np.isfinite(move.times) else "not finite"


def _short_times(move: Move) -> str:
    return f"{float(f'{move.times:.2g}'):,.10g}x" if np.isfinite(move.times) else "not finite"
