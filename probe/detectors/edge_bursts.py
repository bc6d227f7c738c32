"""A burst of gradients that grew step by step and comes back: the edge of stability, or a fault?

Descent whose steps are a little too long for the sharpest direction oscillates along it: the gradient grows
by |1 - rate * sharpness| at each step, until the loss has bent the weights to where it is flatter, and then
both come back by themselves (Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge
of Stability", ICLR 2021; Damian et al., "Self-Stabilization", ICLR 2023). A corrupt batch or an unrolled
recurrence jumps from one step to the next, and what diverges does not come back.

Numbers and verdicts alone; `new_task.py` holds the steps that wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, Literal, NamedTuple

from .base import Finding

RECENT: Final = 96
"""Steps in which the growth and the level before it are looked for."""
LEVEL: Final = 16
"""Steps before the growth whose medians are that level; half of them must be known."""
STARTS: Final = 2.0
"""The growth starts where the norm is last below so many times its lower quartile."""
FEWEST: Final = 3
"""Steps that it takes at least: what is up in fewer has jumped."""
STEP_FACTOR: Final = 3.0
"""From one step to the next the norm grows by less. It is |1 - rate * sharpness| at a rate of four over the
sharpness, beyond which descent does not come back (Lewkowycz et al., "The large learning rate phase of deep
learning: the catapult mechanism", 2020, section 2)."""
LOSS_BACK: Final = 2.0
"""Times its level before, below which a loss is back, ..."""
NORM_BACK: Final = 6.0
"""... and a norm: the oscillation fades for long after the loss, which goes with its square, is low again."""
BACK_STEPS: Final = 2
"""Steps in a row that must be back: an oscillation may be low at every other one."""
AS_LONG: Final = 3
"""It is back within so many times the steps that it grew for; what has grown as far again goes on."""
RATE_FACTOR: Final = 3.0
"""A learning rate that has risen by so much since the level before is what lifts the gradient."""
WORSE: Final = 3
"""Bursts in a row, each higher than the one before, ..."""
WORSE_FACTOR: Final = 2.0
"""... the last so many times as high as the first of them: the run gets worse."""

_UNDECIDED: Final = "; the next steps tell whether it comes back"
_ELSEWHERE: Final = "; what came of it is the event of the loss"


class Reading(NamedTuple):
    """What is looked at of one step."""

    loss: float
    norm: float
    rate: float | None


class Growth(NamedTuple):
    """How a gradient has grown up to the step of an alarm, and from where."""

    steps: int
    loss: float
    """Median of the steps before; so is the norm."""
    norm: float


class EdgeBursts:
    """The newest readings of a run, and how high its bursts were."""

    def __init__(self) -> None:
        self._recent: deque[Reading] = deque(maxlen=RECENT)
        self._heights: list[float] = []
        """Of bursts in a row, each higher than the one before."""

    def learn(self, readings: Iterable[Reading]) -> None:
        """Add steps in their order, each with a finite loss and norm."""
        self._recent.extend(readings)

    def forget_level(self) -> None:
        """What has just been told as a fault is to be no burst a step later."""
        self._recent.clear()

    def growth(self, now: Reading) -> Growth | None:
        """Return how the gradient has grown to a step that is not learnt yet; None where it has jumped."""
        readings = [*self._recent, now]
        norms = _envelope([one.norm for one in readings])
        low = STARTS * sorted(norms)[len(norms) // 4]
        start = next((at for at in range(len(norms) - 1, -1, -1) if norms[at] <= low), None)
        if start is None or len(norms) - 1 - start < FEWEST or _jumps(norms[start:]):
            return None
        before = readings[max(start + 1 - LEVEL, 0) : start + 1]
        level = Growth(
            len(norms) - 1 - start, median(one.loss for one in before), median(one.norm for one in before)
        )
        rates = [one.rate for one in readings[max(start + 1 - LEVEL, 0) :] if one.rate]
        has_risen = now.rate is not None and rates != [] and now.rate > RATE_FACTOR * min(rates)
        if len(before) < LEVEL // 2 or has_risen or level.loss <= 0.0 or now.norm <= NORM_BACK * level.norm:
            return None
        return level

    def word(self, growth: Growth, since: Sequence[Reading]) -> Literal["burst", "fault"] | None:
        """What the steps since an alarm say, its own first; None: not enough."""
        norms = _envelope([one.norm for one in since])
        if _jumps(norms):
            return "fault"
        if self.is_back(growth, since):
            return "fault" if self._gets_worse(max(norms)) else "burst"
        grows_on = norms[-1] * growth.norm > norms[0] ** 2
        return "fault" if grows_on or len(since) > AS_LONG * growth.steps else None

    def is_back(self, growth: Growth, since: Sequence[Reading]) -> bool:
        """Whether loss and gradient are where they were."""
        return len(since) > BACK_STEPS and all(
            one.loss <= LOSS_BACK * growth.loss and one.norm <= NORM_BACK * growth.norm
            for one in since[-BACK_STEPS:]
        )

    def note_height(self, height: float) -> None:
        """Remember a burst that has come back."""
        self._heights = [*self._rising(height), height][-2 * WORSE :]

    def _rising(self, height: float) -> list[float]:
        return self._heights if self._heights and height > self._heights[-1] else []

    def _gets_worse(self, height: float) -> bool:
        rising = self._rising(height)
        return len(rising) >= WORSE - 1 and height >= WORSE_FACTOR * rising[0]


def provisional(growth: Growth, step: int, norm: float, held: Sequence[Finding]) -> Finding:
    """Return what is known of a burst while its verdict waits."""
    return _finding(
        held,
        f"Gradient norm {norm:.4g} at step {step} is {norm / growth.norm:.3g}x its level before "
        f"({growth.norm:.4g}), from which it grew for {growth.steps} steps{_UNDECIDED}",
        growth,
        norm,
    )


def told(growth: Growth, step: int, since: Sequence[Reading], held: Sequence[Finding]) -> Finding:
    """Return the verdict on a burst that has come back."""
    height, loss = max(one.norm for one in since), max(one.loss for one in since)
    times = height / growth.norm
    return _finding(
        held,
        f"The gradient burst {times:.3g}-fold and came back within {len(since) - 1} steps: norm "
        f"{growth.norm:.4g} before, {since[0].norm:.4g} at step {step} after {growth.steps} steps of growth, "
        f"{height:.4g} at most, now {since[-1].norm:.4g}; loss {growth.loss:.4g}, {loss:.4g} at most, now "
        f"{since[-1].loss:.4g}. The learning rate is at the edge of what is stable; lower it if this bothers "
        "you",
        growth,
        since[0].norm,
    )


def settled(message: str) -> str:
    """Return the message of a provisional event where the verdict is another event's."""
    return message.replace(_UNDECIDED, _ELSEWHERE, 1)


def _finding(held: Sequence[Finding], message: str, growth: Growth, norm: float) -> Finding:
    explosion = next((one for one in held if one.kind == "gradient_explosion"), None)
    return Finding(
        kind="gradient_explosion",
        severity="info",
        subject="gradient" if explosion is None else explosion.subject,
        message=message,
        value=norm,
        threshold=None if explosion is None else explosion.threshold,
        baseline={"median": growth.norm, "steps": float(LEVEL)},
        neighbours=() if explosion is None else explosion.neighbours,
        affected=() if explosion is None else explosion.affected,
    )


def _envelope(norms: Sequence[float]) -> list[float]:
    """The higher one of each value and the one before: an oscillation may be low at every other step."""
    return [norms[0], *(max(pair) for pair in pairwise(norms))]


def _jumps(norms: Sequence[float]) -> bool:
    return any(later > STEP_FACTOR * earlier for earlier, later in pairwise(norms))
