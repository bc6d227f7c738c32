"""A loss that jumps with the size of the input and then falls: a new task, or a fault?

A curriculum that goes on to longer sequences lifts the loss twentyfold, and so does a corrupt batch. What
follows tells them apart, so the verdict on a step whose input has a size that is new to the run waits for the
losses of the next ones: back at once is a corrupt batch, staying up is a fault, falling step by step is
training. Where the input keeps its size more is asked: the loss has to fall half way, and as slowly as it
did when the run began. What a batch has spoiled recovers sooner; batches of one class each never wait.
A gradient that has grown step by step waits as well, until it is back or is not (`edge_bursts.py`).

Stands between the detectors and the events, and sees the steps one by one; numpy is not needed.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Final, Generic, Literal

from . import edge_bursts
from .base import Finding, ObservationBatch
from .edge_bursts import EdgeBursts, Growth, Reading
from .first_fall import FIRST, FirstFall
from .judged_step import Context, JudgedStep

LONGEST: Final = 80
"""Steps after which a loss that has not fallen counts as one that stays up; what moved before the first of
them is still known then (`why.py`)."""
LEAST: Final = 8
"""Losses that a trend is read from at least."""
SURE: Final = 3.2
"""Standard deviations of Mann and Kendall's statistic: it is read up to 70 times, of losses that stay level
one series in a hundred or so is taken for one that falls."""
LIKELY: Final = 2.3
"""The same where the run ends, and it is read once."""
LEAST_FALL: Final = 0.02
"""Of what the loss has risen by: less is no fall that anybody would see."""
MOST_OF_IT: Final = 0.4
"""A loss that has lost so much of its rise, at each of the last steps, has fallen, whatever the trend."""
CLIFF: Final = 0.5
"""Of the rise, lost from one step to the next and for good: the batch before was the fault ..."""
CLIFF_STEPS: Final = 8
"""... where it is among the first ones."""
RISES: Final = 3.0
"""Times the first losses."""
RATE_FACTOR: Final = 3.0
"""A learning rate that has just risen by so much may be what lifts the loss."""
AS_SLOWLY: Final = 0.5
"""At the same size of the input: the loss makes half of its way back in so much of the steps that it took for
half of its way down when the run began, or in more ..."""
PATIENCE: Final = 4.0
"""... within so many times as many, ..."""
MOST_STEPS: Final = 160
"""... and this many at most."""
NOT_FALLING: Final = 24
"""Losses after which one that does not even seem to fall has stayed up."""
AS_HIGH: Final = 16.0
"""Times the first loss of the run: what is above it is no loss that a new task begins with."""
LAG: Final = 3
"""Steps by which the jump may come after the new size."""
SIZES: Final = 64
LEVEL: Final = 16
"""Losses whose median is the level before."""
CEILING: Final = 2.0
"""Above so many times the highest loss of the wait, a loss is a spike of the new task too."""
BURST: Final = 3.0
"""The same of gradients."""
CALM: Final = 64
"""Steps without a finding after which the detectors have learnt the new level ..."""
ADOPTION: Final = 256
"""... which they have by then in any case."""

_UNDECIDED: Final = "; the losses of the next steps tell whether it is a fault or a new task"

_Word = Literal["new task", "burst", "fault"]


class NewTaskWatch(Generic[Context]):
    """Takes judged steps in their order and gives them back, in their order, when their verdict stands.

    Args:
        may_burst: whether a burst of gradients may wait, too; not where an absolute limit was asked for.
    """

    def __init__(self, *, may_burst: bool = True) -> None:
        self._step = -1
        self._may_burst = may_burst
        self._waiting: list[JudgedStep[Context]] = []
        self._growth: Growth | None = None
        """Of the gradient, where what waits is a burst that may come back."""
        self._pace: int | None = None
        """Steps for half of the run's first fall, where what waits has an input of the usual size."""
        self._batches = self._of_one_class = 0
        """The first ones, and those of one class: at the next class the loss jumps and falls too."""
        self._reset()

    def _reset(self) -> None:
        self._sizes: deque[int] = deque(maxlen=SIZES)
        self._rates: deque[float] = deque(maxlen=LAG + 1)
        self._losses: deque[float] = deque(maxlen=LEVEL)
        self._known_sizes: Counter[int] = Counter()
        self._fall = FirstFall()
        self._bursts = EdgeBursts()
        self._level = math.nan
        self._ceiling = self._burst = 0.0
        self._calm_left = self._adoption_left = 0

    def note_classes(self, *, is_one: bool) -> None:
        """Take whether one of the first batches has examples of one class alone."""
        self._batches += 1
        self._of_one_class += is_one

    @property
    def has_one_class(self) -> bool:
        """Whether each of the first batches has examples of one class alone."""
        return self._of_one_class == self._batches >= FIRST

    @property
    def waits(self) -> bool:
        """Whether steps are held."""
        return bool(self._waiting)

    @property
    def has_just_begun(self) -> bool:
        """Whether the newest step is the first of those that are held."""
        return len(self._waiting) == 1

    def take(self, step: JudgedStep[Context], *, may_wait: bool) -> list[JudgedStep[Context]]:
        """Return the steps whose verdict stands now, the oldest first; none while it waits.

        Args:
            step: the newest one.
            may_wait: whether the verdict on it may come later.
        """
        stands = self.close() if step.step < self._step else []
        if step.step < self._step:
            self._reset()
        self._step = step.step
        if self._waiting:
            self._waiting.append(step)
            word: _Word | None = "fault" if step.is_urgent or not may_wait else self._word()
            return stands if word is None else [*stands, *self._release(word)]
        step = self._adopted(step)
        if may_wait and not step.is_urgent and step.held:
            self._growth = self._growth_to(step)
            if self._growth is not None:
                self._waiting.append(step)
                return stands
        if may_wait and not step.is_urgent and self._may_be_new_task(step):
            self._known_sizes = Counter(list(self._sizes)[: len(self._sizes) - LAG])
            self._level = median(self._losses)
            self._waiting.append(step)
            return stands
        self._learn(step)
        return [*stands, step]

    def provisional(self) -> Finding:
        """Return what is known of a jump while its verdict waits: all that a killed process leaves."""
        first = self._waiting[0]
        if self._growth is not None:
            return edge_bursts.provisional(self._growth, first.step, first.norm or 0.0, first.held)
        shown = next((one for one in first.held if one.kind == "loss_spike"), first.held[0])
        return replace(shown, severity="info", message=f"{shown.message}{_UNDECIDED}")

    def note_quiet(self, batch: ObservationBatch) -> None:
        """Learn steps without findings, as `take` would; not to be called while it waits."""
        steps = [self._step, *batch.steps]
        anew = [at for at, (before, step) in enumerate(pairwise(steps)) if step < before]
        if anew:
            self._reset()
            batch = batch.part(anew[-1], len(batch))
        self._step = batch.steps[-1]
        self._sizes.extend(batch.input_elements or [0] * len(batch))
        self._rates.extend(rate for rate in batch.highest_rates if rate is not None)
        losses = [loss for loss in batch.losses if loss is not None]
        self._losses.extend(losses)
        self._fall.learn(losses)
        rates = batch.highest_rates or [None] * len(batch)
        self._bursts.learn(
            reading
            for reading in map(_reading, batch.losses, batch.total_grad_norms, rates)
            if reading is not None
        )
        self._calm_left = max(self._calm_left - len(batch), 0)
        self._adoption_left = max(self._adoption_left - len(batch), 0)

    def close(self) -> list[JudgedStep[Context]]:
        """Nothing more comes: return what is held, judged by what is known."""
        if not self._waiting:
            return []
        if self._growth is not None:
            return self._release(self._word_of_burst(self._growth) or "fault")
        losses = self._waited_losses()
        if self._pace is None:
            is_new = self._has_fallen(losses, sure=LIKELY)
        else:
            is_new = self._word_at_same_size(losses, self._pace) == "new task"
        return self._release("new task" if is_new else "fault")

    # ----------------------------------------------------------------------------------------- beginning

    def _may_be_new_task(self, step: JudgedStep[Context]) -> bool:
        """Whether the input has another size, or the loss may fall as before, and nothing else lifts it."""
        if not step.held or step.loss is None or not math.isfinite(step.loss) or not step.elements:
            return False
        if len(self._sizes) < LEVEL + LAG or len(self._losses) < LEVEL // 2:
            return False
        self._pace = None
        if step.elements in list(self._sizes)[: len(self._sizes) - LAG]:
            self._pace = self._pace_at_same_size(step, step.loss)
            if self._pace is None:
                return False
        rates = [rate for rate in self._rates if rate > 0.0]
        if step.rate is not None and rates and step.rate > RATE_FACTOR * min(rates):
            return False
        return step.loss > median(self._losses)

    def _pace_at_same_size(self, step: JudgedStep[Context], loss: float) -> int | None:
        """How fast a loss falls that falls as before; None where it is no new task's, or nobody knows."""
        start = self._fall.start
        if self.has_one_class or start is None or loss > AS_HIGH * start:
            return None
        if all(one.kind != "loss_spike" for one in step.held):
            return None
        return self._fall.half_fall(median(self._losses))

    def _growth_to(self, step: JudgedStep[Context]) -> Growth | None:
        """How the gradient has grown to this step, where it may come back."""
        reading = _reading(step.loss, step.norm, step.rate)
        if reading is None or not self._may_burst or any(one.severity == "critical" for one in step.held):
            return None
        return self._bursts.growth(reading)

    def _learn(self, step: JudgedStep[Context]) -> None:
        reading = _reading(step.loss, step.norm, step.rate)
        if reading is not None:
            self._bursts.learn([reading])
        self._sizes.append(step.elements)
        if step.rate is not None:
            self._rates.append(step.rate)
        if step.loss is not None and math.isfinite(step.loss) and not step.held:
            self._losses.append(step.loss)
            self._fall.learn([step.loss])

    # ------------------------------------------------------------------------------------------- waiting

    def _waited_losses(self) -> list[float]:
        losses = (one.loss for one in self._waiting)
        return [loss for loss in losses if loss is not None and math.isfinite(loss)]

    def _word(self) -> _Word | None:
        """What the steps so far say; None: not enough."""
        if self._growth is not None:
            return self._word_of_burst(self._growth)
        losses = self._waited_losses()
        if self._pace is not None:
            return self._word_at_same_size(losses, self._pace)
        back = sum(one.elements in self._known_sizes for one in self._waiting)
        if back >= 2 and 4 * back > len(self._waiting):
            return "fault"
        if self._has_cliff(losses) or self._has_risen(losses):
            return "fault"
        if self._has_fallen(losses, sure=SURE):
            return "new task"
        return "fault" if len(self._waiting) > LONGEST else None

    def _word_of_burst(self, growth: Growth) -> _Word | None:
        """The same of a gradient that has grown step by step: it must come back, and soon."""
        since = self._waited_readings()
        is_critical = any(one.severity == "critical" for one in self._waiting[-1].held)
        if is_critical or len(since) < len(self._waiting):
            return "fault"
        return self._bursts.word(growth, since)

    def _waited_readings(self) -> list[Reading]:
        readings = (_reading(one.loss, one.norm, one.rate) for one in self._waiting)
        return [reading for reading in readings if reading is not None]

    def _word_at_same_size(self, losses: Sequence[float], pace: int) -> _Word | None:
        """The same where the input has kept its size: it must fall half way, and as slowly as before."""
        if self._has_cliff(losses) or self._has_risen(losses):
            return "fault"
        rises = [self._rise(loss, losses[0]) for loss in losses]
        half = next((at for at, pair in enumerate(pairwise(rises), 1) if max(pair) < 0.5), None)
        if half is not None:
            return "new task" if half >= max(AS_SLOWLY * pace, LEAST) else "fault"
        if len(losses) >= NOT_FALLING and _trend(losses) > -LIKELY:
            return "fault"
        return "fault" if len(losses) > min(max(PATIENCE * pace, LONGEST), MOST_STEPS) else None

    def _rise(self, loss: float, first: float) -> float:
        """How much of the first loss's rise above the level before is left, by factors where there are."""
        if min(loss, first, self._level) > 0.0:
            return math.log(loss / self._level) / math.log(first / self._level)
        return (loss - self._level) / (first - self._level)

    def _has_cliff(self, losses: Sequence[float]) -> bool:
        rises = [self._rise(loss, losses[0]) for loss in losses[: CLIFF_STEPS + 2]]
        last = len(rises) - 1
        return any(max(rises[at], rises[at + 1]) < rises[at - 1] - CLIFF for at in range(1, last))

    def _has_risen(self, losses: Sequence[float]) -> bool:
        if len(losses) <= LAG:
            return False
        first = max(losses[:LAG])
        is_far_up = median(losses[-LAG:]) - self._level > RISES * (first - self._level)
        return is_far_up or (len(losses) >= LEAST and _trend(losses) > SURE)

    def _has_fallen(self, losses: Sequence[float], *, sure: float) -> bool:
        if len(losses) < LEAST:
            return False
        middle, first = len(losses) // 2, median(losses[:LAG])
        fall = self._rise(median(losses[:middle]), first) - self._rise(median(losses[-middle:]), first)
        left = max(self._rise(loss, first) for loss in losses[-LEAST // 2 :])
        return (fall >= LEAST_FALL and _trend(losses) < -sure) or left < 1.0 - MOST_OF_IT

    # --------------------------------------------------------------------------------------------- ended

    def _release(self, word: _Word) -> list[JudgedStep[Context]]:
        losses, readings, growth = self._waited_losses(), self._waited_readings(), self._growth
        held, self._waiting, self._growth = self._waiting, [], None
        for one in held:
            self._learn(one)
        if word == "fault":
            self._bursts.forget_level()
            return held
        if growth is not None:
            self._bursts.note_height(max(one.norm for one in readings))
            return self._with(edge_bursts.told(growth, held[0].step, readings, held[0].held), held)
        bursts = [one.value for step in held for one in step.held if one.kind == "gradient_explosion"]
        self._ceiling = CEILING * max(losses)
        self._burst = BURST * max((value for value in bursts if value is not None), default=0.0)
        self._calm_left, self._adoption_left = CALM, ADOPTION
        self._losses.clear()
        return self._with(self._finding(held, losses), held)

    def _with(self, told: Finding, held: Sequence[JudgedStep[Context]]) -> list[JudgedStep[Context]]:
        """The steps with one finding at the first of them in place of all that was held."""
        kept = [one.without(one.held) for one in held]
        return [replace(kept[0], findings=[told, *kept[0].findings]), *kept[1:]]

    def _adopted(self, step: JudgedStep[Context]) -> JudgedStep[Context]:
        """Drop what the detectors find only because they still compare with the task before."""
        if not (self._calm_left and self._adoption_left):
            return step
        self._adoption_left -= 1
        self._calm_left -= 1
        if not step.held or step.loss is None or not step.loss <= self._ceiling:
            return step
        usual = [
            one
            for one in step.held
            if one.kind == "loss_spike" or (one.value is not None and one.value <= self._burst)
        ]
        self._calm_left = CALM if usual else self._calm_left
        return step.without(usual)

    def _finding(self, held: Sequence[JudgedStep[Context]], losses: Sequence[float]) -> Finding:
        first, loss, now = held[0], losses[0], median(losses[-LEAST // 2 :])
        if self._pace is None:
            before = self._known_sizes.most_common(1)[0][0]
            why = f"with a new size of the input ({before} -> {first.elements} elements)"
        else:
            why = "at the same size of the input, and falls about as it did when the run began"
        rise = f"{loss / self._level:.3g}x" if self._level > 0.0 else f"{loss - self._level:.4g} above"
        spike = next((one for one in first.held if one.kind == "loss_spike"), first.held[0])
        is_spike = spike.kind == "loss_spike"
        return Finding(
            kind="loss_spike",
            severity="info",
            subject="loss",
            message=f"New level of the loss, from which it falls: a new task? Loss {loss:.4g} at step "
            f"{first.step} is {rise} its level before ({self._level:.4g}), {why}; "
            f"around step {held[-1].step} it is {now:.4g}",
            value=loss,
            threshold=spike.threshold if is_spike else None,
            baseline={"median": self._level, "steps": float(LEVEL)},
            neighbours=spike.neighbours if is_spike else (),
        )


def settled(message: str) -> str:
    """Return the message of such an event where the verdict is another event's."""
    return edge_bursts.settled(message).replace(_UNDECIDED, "; it comes with a new level of the loss", 1)


def _reading(loss: float | None, norm: float | None, rate: float | None) -> Reading | None:
    if loss is None or norm is None or not (math.isfinite(loss) and math.isfinite(norm)):
        return None
    return Reading(loss, norm, rate)


def _trend(values: Sequence[float]) -> float:
    """Mann and Kendall's statistic in standard deviations, below 0 where values fall."""
    count = len(values)
    signs = sum(
        (later > earlier) - (later < earlier)
        for at, earlier in enumerate(values)
        for later in values[at + 1 :]
    )
    return signs / math.sqrt(count * (count - 1) * (2 * count + 5) / 18.0)
