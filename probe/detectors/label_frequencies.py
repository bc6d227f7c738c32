"""A classifier that answers with the frequencies of the labels, whatever it is given: it learns nothing more.

Where nine of ten labels are 0, such a model has a loss of 0.325, not of log(2), and an accuracy of 90 %. What
a batch's loss is then follows from its own labels alone, so losses are compared batch by batch: by what they
are above or below that, the noise of the labels left out. A model that uses its inputs comes to lie below.
Labels that nothing in the inputs tells apart look the same, and the finding says so. Numbers only; told by
`probe/loop/label_looks.py`.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from .base import Finding, Floats
from .sample import Sample
from .sampled_thresholds import SampledThresholds

FIRST: Final = 32
"""Steps after which balanced labels, and what has learnt something by then, are looked at no more."""
BLOCK: Final = 16
"""Steps that are judged together."""
SLACK: Final = 400
"""Steps in which the loss may come down to the frequencies, besides those for which it must stay there."""
MOST_OPEN: Final = 64
"""Backwards without an update by an optimizer."""
BALANCED: Final = 0.95
"""Of the logarithm of the number of classes: above it `PlateauDetector` knows what guessing gives."""
LEARNT: Final = 0.05
"""Below the frequencies' loss, as a share of it: the inputs are used."""
BELOW: Final = 0.003
"""The same for the mean of many steps, which is known more precisely; or twice its standard error."""
ABOVE: Final = 0.03
"""Above it: the answer still changes from step to step ..."""
APPROACH: Final = 0.06
"""... and comes nearer, in a single block."""
PRECISION: Final = 0.01
"""The standard error must be below this share."""
BIAS: Final = 0.003
"""(classes - 1) / (2 labels): by that frequencies of few labels make an entropy too small (Miller, 1955)."""


class LabelledLoss(NamedTuple):
    """One backward's loss, with the labels that it is of."""

    loss: float
    """Mean over the labels."""
    counts: Floats
    """(label sets, classes) how often each occurs; a set for each output of its own."""


class LabelFrequencyDetector:
    """Finds a `loss_plateau`, once; `PlateauDetector` asks for it, and judges whether anything is trained.

    Attributes:
        is_over: whether nothing more is to be noted.
        has_news: whether there is something to say.
    """

    def __init__(self, thresholds: SampledThresholds) -> None:
        self._patience = thresholds.plateau_steps
        self.is_over = self.has_news = False
        self._open: list[LabelledLoss] = []
        """Of the step under way: one for each micro-step."""
        self._steps: list[int] = []
        self._losses: list[float] = []
        self._counts: list[Floats] = []
        self._found: Finding | None = None

    def note(self, labelled: LabelledLoss | None) -> None:
        """Take the loss of a backward; None: its labels cannot be read, or it is of another kind."""
        before = self._counts[:1] or [one.counts for one in self._open[:1]]
        is_another = labelled is None or any(counts.shape != labelled.counts.shape for counts in before)
        if labelled is None or is_another or len(self._open) >= MOST_OPEN:
            self.is_over = True
        else:
            self._open.append(labelled)

    def end_step(self, step: int) -> None:
        """An update was made of what was noted since the one before."""
        opened, self._open = self._open, []
        if self.is_over or not opened:
            return
        weights = [labelled.counts.sum() for labelled in opened]
        self._steps.append(step)
        self._losses.append(float(np.average([labelled.loss for labelled in opened], weights=weights)))
        self._counts.append(np.sum([labelled.counts for labelled in opened], axis=0))
        if len(self._steps) >= FIRST and len(self._steps) % BLOCK == 0:
            self._judge()
        if self.is_over:
            self._steps, self._losses, self._counts = [], [], []

    def _judge(self) -> None:
        counts = np.stack(self._counts)
        frequencies = counts.sum(0) / counts.sum((0, 2))[0]
        logs = np.log(np.where(frequencies > 0.0, frequencies, 1.0))
        guess = -float((frequencies * logs).sum(1).mean())
        classes = int((frequencies > 0.0).sum(1).max())
        if guess <= 0.0 or guess > BALANCED * math.log(max(classes, 2)):
            self.is_over = True
            return
        # What each step's own labels give: (steps,) means over the label sets.
        expected = -(counts * logs).sum((1, 2)) / counts.sum((1, 2))
        excess = np.array(self._losses) - expected
        blocks = excess.reshape(-1, BLOCK).mean(1)
        if blocks[-1] < -LEARNT * guess or self._steps[-1] - self._steps[0] > self._patience + SLACK:
            self.is_over = True
        since = _since_there(blocks, guess) * BLOCK
        if since < len(excess) and self._steps[-1] - self._steps[since] >= self._patience:
            is_precise = (classes - 1) / (2.0 * counts.sum()) <= BIAS * guess
            if is_precise and _is_there(excess[since:], guess):
                self._find(since, guess, float(frequencies.max(1).mean()))

    def _find(self, first: int, guess: float, share: float) -> None:
        self.is_over = self.has_news = True
        loss = float(np.mean(self._losses[first:]))
        since, now = self._steps[first], self._steps[-1]
        self._found = Finding(
            kind="loss_plateau",
            severity="warning",
            subject="loss",
            message=f"Loss {loss:.4g} is that of always predicting the label frequencies ({share:.0%} of the "
            f"labels are the most frequent one), at the {now - since} steps up to step {now}: the model uses "
            "nothing of its inputs, or nothing in them tells the labels apart",
            value=loss,
            threshold=None,
            baseline={"guess": guess},
            neighbours=tuple(zip(self._steps[-BLOCK:], self._losses[-BLOCK:], strict=True)),
        )

    def observe(self, sample: Sample) -> list[Finding]:
        """Return the finding when there is one."""
        found, self._found, self.has_news = self._found, None, False
        return [] if found is None else [found]


def _since_there(blocks: Floats, guess: float) -> int:
    """The first of the newest blocks that are all near the frequencies' loss; their number where none is."""
    away = np.flatnonzero((blocks > APPROACH * guess) | (blocks < -LEARNT * guess))
    return int(away[-1]) + 1 if away.size else 0


def _is_there(excess: Floats, guess: float) -> bool:
    """Whether the second half of these steps is as high as the frequencies make it, and not below."""
    late = excess[len(excess) // 2 :]
    mean, error = float(late.mean()), float(late.std(ddof=1)) / math.sqrt(len(late))
    is_near = -max(BELOW * guess, 2.0 * error) <= mean <= ABOVE * guess
    return is_near and error <= PRECISION * guess
