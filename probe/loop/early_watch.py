"""What is looked at in the first steps of a training alone: is it put together as it was meant to be?

Used by the step tracker and the step writer on the training thread. One attribute says whether any of it is
still at work, so that a run that is wired well pays for one look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from ..attach.layout import ModelLayout
from ..attach.watched_model import WatchedModel
from ..detectors.sampled_bank import SampledDetectorBank
from ..guard import Guard
from ..step.frames import MeasuredStep
from ..step.open_step import FinishedStep
from .broadcast_losses import pairs_in_loss
from .gradient_clearing import ClearingWatch
from .loss_weights import has_zero_weight
from .misfit_losses import misfit_in_loss
from .wiring_watch import WiringWatch


class EarlyWatch:
    """Follows a model's first steps: its losses' shapes, whether gradients are cleared, what they reach.

    Attributes:
        is_on: whether anything is still to be seen.
        wants_calls: whether the next forward is to be followed by `begin_call` and `end_call`.
    """

    def __init__(
        self,
        model: WatchedModel,
        bank: SampledDetectorBank,
        optimizers: Callable[[], list[Optimizer]],
        *,
        guard: Guard,
        excuse_zeros: Callable[[], None],
    ) -> None:
        self._guard = guard
        self._shapes, self._inputs, self._excuse_zeros = bank.loss_shapes, bank.loss_inputs, excuse_zeros
        self._clearing = ClearingWatch(model, bank.accumulation)
        self._wiring = WiringWatch(
            model,
            bank.wiring,
            optimizers,
            updates=bank.updates,
            not_updated=bank.not_updated,
            guard=guard,
        )
        self.is_on, self.wants_calls = True, False
        self._names: tuple[str, ...] = ()

    def begin_call(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward begins."""
        self._guard.run("wiring", self._wiring.begin_call, root, args, kwargs)

    def end_call(self, output: Any = None, *, raised: bool = False) -> None:
        """It has returned, or raised."""
        self._guard.run("wiring", self._wiring.end_call, output, raised=raised)

    def before_backward(self) -> None:
        """Any backward begins, of this model or of another one."""
        if not self._clearing.is_over:
            self._guard.run_brief("clearing", self._clearing.before_backward)

    def look_at_loss(self, tensors: Any, sizes: set[int]) -> None:
        """A backward of this model begins.

        Args:
            tensors: what backward is called on.
            sizes: numbers of samples of the step's forwards.
        """
        if not self._shapes.is_over:
            self._guard.run("loss shapes", lambda: self._shapes.note(pairs_in_loss(tensors, sizes)))
            self._guard.run("loss inputs", lambda: self._inputs.note(misfit_in_loss(tensors)))
            if self._guard.run("loss weights", has_zero_weight, tensors):
                self._excuse_zeros()

    def after_any_backward(self) -> None:
        """A backward has ended."""
        if not self._clearing.is_over:
            self._guard.run_brief("clearing", self._clearing.after_backward)

    def after_backward(self) -> None:
        """A backward of this model has ended."""
        if self._wiring.wants_backward:
            self._guard.run("wiring", self._wiring.after_backward)

    def after_step(self, optimizer: Optimizer, step: int | None) -> None:
        """An optimizer has updated, at a finished step; None before the first."""
        if not self._clearing.is_over:
            self._guard.run_brief("clearing", self._clearing.after_step, optimizer, step)

    def wants(self, measured: MeasuredStep) -> bool:
        """Whether `note_step` is to be called; other parameters are looked at anew."""
        return self.is_on or measured.layout.names is not self._names

    def needs_gradients(self, layout: ModelLayout) -> bool:
        """Whether `note_step` has to know which gradients a step has; in the first 20, as a rule."""
        return not self._wiring.is_over(layout)

    def note_step(self, finished: FinishedStep, measured: MeasuredStep) -> None:
        """Tell which parameters of a finished step were not reached, and whether an update follows."""
        self._names = measured.layout.names
        if not self._wiring.is_over(measured.layout):
            self._guard.run_brief("wiring", self._note_wiring, finished, measured)
        self.wants_calls = self._wiring.wants_calls
        self.is_on = not (
            self._wiring.is_over(measured.layout) and self._clearing.is_over and self._shapes.is_over
        )

    def _note_wiring(self, finished: FinishedStep, measured: MeasuredStep) -> None:
        self._wiring.note_step(
            measured.step,
            measured.gradients.missing,
            layout=measured.layout,
            had_backward=finished.opened.backwards > 0,
            is_update=not finished.is_early,
            is_zero=not measured.gradients.max_abs.any(),
        )
