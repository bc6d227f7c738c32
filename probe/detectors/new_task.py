"""A loss that jumps with the size of the input and then falls: a new task, or a fault?

A curriculum that goes on to longer sequences lifts the loss twentyfold, and so does a corrupt batch. What
follows tells them apart, so the verdict on a step whose input has a size that is new to the run waits for the
losses of the next ones: back at once is a corrupt batch, staying up is a fault, falling step by step is
training. Where the input keeps its size more is asked: the loss has to fall half way, and as slowly as it
did when the run began. What a batch has spoiled recovers sooner; batches of one class each never wait.

Stands between the detectors and the events, and sees the steps one by one; numpy is not needed.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Final, Generic, Literal, TypeVar

from .base import Finding, ObservationBatch
from .first_fall import FIRST, FirstFall

HELD_KINDS: Final = frozenset({"loss_spike", "gradient_explosion"})
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

Context = TypeVar("Context")
_Word = Literal["new task", "fault"]


@dataclass(frozen=True, slots=True)
class JudgedStep(Generic[Context]):
    """A step with what the detectors have found at it; `elements` is 0 where it is not known."""

    step: int
    loss: float | None
    elements: int
    rate: float | None
    """The highest learning rate."""
    findings: list[Finding]
    context: Context
    """Whatever its events need."""

    @classmethod
    def at(
        cls, batch: ObservationBatch, index: int, findings: list[Finding], context: Context
    ) -> JudgedStep[Context]:
        """A step of a batch."""
        elements = batch.input_elements[index] if batch.input_elements else 0
        rate = batch.highest_rates[index] if batch.highest_rates else None
        return cls(batch.steps[index], batch.losses[index], elements, rate, findings, context)

    @property
    def is_urgent(self) -> bool:
        """Whether something was found that does not wait."""
        return any(one.severity != "info" and one.kind not in HELD_KINDS for one in self.findings)

    @property
    def held(self) -> list[Finding]:
        """What may be the sign of a new task."""
        return [one for one in self.findings if one.severity != "info" and one.kind in HELD_KINDS]

    def without(self, dropped: Sequence[Finding]) -> JudgedStep[Context]:
        """The same without these findings."""
        return replace(self, findings=[one for one in self.findings if one not in dropped])


class NewTaskWatch(Generic[Context]):
    """Takes judged steps in their order and gives them back, in their order, when their verdict stands."""

    def __init__(self) -> None:
        self._step = -1
        self._waiting: list[JudgedStep[Context]] = []
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
        self._level = math.nan
        self._ceiling = self._burst = 0.0
        self._calm_left = self._adoption_left = 0

    def note_classes(self, *, is_one: bool) -> None:
        """Take whether one of the first batches has examples of one class alone."""
        self._batches += 1
        self._of_one_class += is_one

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
        if may_wait and not step.is_urgent and self._may_be_new_task(step):
            self._known_sizes = Counter(list(self._sizes)[: len(self._sizes) - LAG])
            self._level = median(self._losses)
            self._waiting.append(step)
            return stands
        self._learn(step)
        return [*stands, step]

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
        self._calm_left = max(self._calm_left - len(batch), 0)
        self._adoption_left = max(self._adoption_left - len(batch), 0)

    def close(self) -> list[JudgedStep[Context]]:
        """Nothing more comes: return what is held, judged by what is known."""
        if not self._waiting:
            return []
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
        has_one_class = self._of_one_class == self._batches >= FIRST
        if has_one_class or start is None or loss > AS_HIGH * start:
            return None
        if all(one.kind != "loss_spike" for one in step.held):
            return None
        return self._fall.half_fall(median(self._losses))

    def _learn(self, step: JudgedStep[Context]) -> None:
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
        held, self._waiting = self._waiting, []
        losses = [one.loss for one in held if one.loss is not None and math.isfinite(one.loss)]
        for one in held:
            self._learn(one)
        if word == "fault":
            return held
        bursts = [one.value for step in held for one in step.held if one.kind == "gradient_explosion"]
        self._ceiling = CEILING * max(losses)
        self._burst = BURST * max((value for value in bursts if value is not None), default=0.0)
        self._calm_left, self._adoption_left = CALM, ADOPTION
        self._losses.clear()
        told = self._finding(held, losses)
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


def provisional(held: Sequence[Finding]) -> Finding:
    """Return what is known of a jump while its verdict waits: all that a process leaves that is killed."""
    first = next((one for one in held if one.kind == "loss_spike"), held[0])
    return replace(first, severity="info", message=f"{first.message}{_UNDECIDED}")


def settled(message: str) -> str:
    """Return the message of such an event where the verdict is another event's."""
    return message.replace(_UNDECIDED, "; it comes with a new level of the loss", 1)


def _trend(values: Sequence[float]) -> float:
    """Mann and Kendall's statistic in standard deviations, below 0 where values fall."""
    count = len(values)
    signs = sum(
        (later > earlier) - (later < earlier)
        for at, earlier in enumerate(values)
        for later in values[at + 1 :]
    )
    return signs / math.sqrt(count * (count - 1) * (2 * count + 5) / 18.0)
