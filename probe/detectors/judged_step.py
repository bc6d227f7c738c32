"""A step with what the detectors have found at it, for `new_task.py`, which may let the verdict wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from .base import Finding, ObservationBatch

HELD_KINDS: Final = frozenset({"loss_spike", "gradient_explosion"})

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class JudgedStep(Generic[Context]):
    """A step with what the detectors have found at it; `elements` is 0 where it is not known."""

    step: int
    loss: float | None
    norm: float | None
    """Of the whole gradient."""
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
        loss, norm = batch.losses[index], batch.total_grad_norms[index]
        return cls(batch.steps[index], loss, norm, elements, rate, findings, context)

    @property
    def is_urgent(self) -> bool:
        """Whether something was found that does not wait."""
        return any(one.severity != "info" and one.kind not in HELD_KINDS for one in self.findings)

    @property
    def held(self) -> list[Finding]:
        """What may be the sign of a new task, or of a burst that comes back."""
        return [one for one in self.findings if one.severity != "info" and one.kind in HELD_KINDS]

    def without(self, dropped: Sequence[Finding]) -> JudgedStep[Context]:
        """The same without these findings."""
        return replace(self, findings=[one for one in self.findings if one not in dropped])
