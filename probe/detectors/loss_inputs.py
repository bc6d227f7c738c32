"""Loss functions that are given probabilities where they expect scores, or scores where log-probabilities."""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple, TypeAlias

from .base import Finding
from .cause_advice import LOSS_INPUT
from .sample import Sample

LOOKS: Final = 5
"""Backwards that are looked at ..."""
AGREEING: Final = 3
"""... and how many of them must show it."""
Squashed: TypeAlias = Literal["softmax", "sigmoid"]


class LossInput(NamedTuple):
    """What a loss function is given that it does not expect."""

    function: str
    """`cross_entropy`, `binary_cross_entropy_with_logits` or `nll_loss`."""
    squashed: Squashed | None
    """What made it; None: a linear or convolutional layer."""
    classes: int
    """0 where it is not known, or does not matter."""


class LossInputDetector:
    """Emits `loss_plateau` for a loss that is held up by its own function, `loss_divergence` for one without
    a lower bound; both warnings.

    Told by `note` what the graph of a loss says.
    """

    def __init__(self) -> None:
        self._looks = self._count = 0
        self._misfit: LossInput | None = None
        self._is_reported = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be told."""
        return self._looks >= LOOKS

    def note(self, misfit: LossInput | None) -> None:
        """Take what a loss function was given; None: what it expects, as far as is known."""
        self._looks += 1
        if misfit is not None:
            self._count += 1
            self._misfit = misfit

    def observe(self, sample: Sample) -> list[Finding]:
        """Return a finding once enough losses were made in this way."""
        if self._misfit is None or self._count < AGREEING or self._is_reported:
            return []
        # Once is enough: an episode that went on would hide a plateau that has another reason.
        self._is_reported = True
        is_bounded = self._misfit.squashed is not None
        return [
            Finding(
                kind="loss_plateau" if is_bounded else "loss_divergence",
                severity="warning",
                subject="loss",
                message=_in_words(self._misfit),
                value=sample.loss,
                threshold=lowest_loss(self._misfit),
                advice=LOSS_INPUT,
            )
        ]


def lowest_loss(misfit: LossInput) -> float | None:
    """Return the least mean loss there can be, with scores between 0 and 1; None where there is none.

    Of C classes, with a score of 1 for the right one and 0 for all others: -log(e / (e + C - 1)); of two by
    `binary_cross_entropy_with_logits`, with targets of 1 and scores of 1: log(1 + 1 / e).
    """
    if misfit.function == "cross_entropy" and misfit.classes > 1:
        return math.log(math.e + misfit.classes - 1) - 1.0
    if misfit.function == "binary_cross_entropy_with_logits":
        return math.log1p(math.exp(-1.0))
    return None


def _in_words(misfit: LossInput) -> str:
    function, squashed, classes = misfit
    if squashed is None:
        return (
            "nll_loss is given what a layer returns as it is, and expects log-probabilities: the loss falls "
            "without end though nothing is learnt; cross_entropy is meant, or a log_softmax before it"
        )
    if function == "nll_loss":
        return (
            f"nll_loss is given what a {squashed} returns, and expects log-probabilities: log_softmax is "
            "meant, or cross_entropy with neither"
        )
    lowest, twice = lowest_loss(misfit), "softmax" if function == "cross_entropy" else "sigmoid"
    limit = "" if lowest is None else f": its mean, unweighted, cannot fall below {lowest:.3g}"
    if function != "cross_entropy":
        limit += ", nor below 0.693 where the targets are 0,"
    elif limit:
        limit += f" over {classes} classes,"
    return (
        f"{function} is given what a {squashed} returns, and takes a {twice} of it by itself{limit} whatever "
        f"the model learns; leave out the {squashed}"
    )
