"""What is looked at in the first steps of a training alone: is it put together as it was meant to be?

On the training thread. Each part takes its callables out of the hooks when it has seen enough, so that a run
that is wired well is not asked about it again; other parameters are looked at anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.optim.optimizer import Optimizer

from ..actions.step_hooks import Hook, StepHooks
from ..attach.layout import ModelLayout
from ..attach.watched_model import WatchedModel
from ..detectors.loss_bound import LossBoundDetector
from ..detectors.sampled_bank import SampledDetectorBank
from ..detectors.zero_gradient import ZeroGradientDetector
from ..guard import Guard
from ..step.frames import MeasuredStep
from ..step.open_step import FinishedStep
from .batch_classes import has_one_class
from .bounded_losses import bounded_function
from .broadcast_losses import pairs_in_loss
from .embedding_looks import single_rows
from .frozen_modules import FrozenModules
from .gradient_clearing import ClearingWatch
from .guessed_losses import guess_of
from .label_looks import LabelLooks
from .loss_weights import has_zero_weight
from .misfit_losses import misfit_in_loss
from .wiring_watch import WiringWatch
from .zero_losses import cause_of_zero


class EarlyWatch:
    """Follows a model's first steps: its losses' shapes, whether gradients are cleared, what they reach.

    Args:
        model: the watched one.
        bank: its detectors are told what was seen.
        optimizers: gives those that were seen to update the model.
        hooks: the callables go in here, and out again.
        zeros: is told what may make a loss, or gradients, 0.
        note_classes: called with whether a batch has examples of one class alone.
        loss_bound: is told which function made a loss, whenever it asks.
        on_news: called when the detectors were told of a step.
        guard: runs all of it.
    """

    def __init__(
        self,
        model: WatchedModel,
        bank: SampledDetectorBank,
        optimizers: Callable[[], list[Optimizer]],
        *,
        hooks: StepHooks,
        zeros: ZeroGradientDetector,
        note_classes: Callable[[bool], None],
        loss_bound: LossBoundDetector,
        on_news: Callable[[], None],
        guard: Guard,
    ) -> None:
        self._guard, self._hooks, self._on_news = guard, hooks, on_news
        self._shapes, self._inputs, self._zeros = bank.loss_shapes, bank.loss_inputs, zeros
        self._note_classes = note_classes
        self._loss_bound, self._first_loss = loss_bound, bank.first_loss
        self._model, self._rows = model, bank.embedding_rows
        self._frozen = FrozenModules(model, bank.frozen, optimizers)
        self._clearing = ClearingWatch(model, bank.accumulation)
        self._wiring = WiringWatch(
            model,
            bank.wiring,
            optimizers,
            updates=bank.updates,
            not_updated=bank.not_updated,
            guard=guard,
        )
        self._clear: list[tuple[Hook[[], None], Callable[[], None]]] = [
            (hooks.before_any_backward, partial(guard.run_brief, "clearing", self._clearing.before_backward)),
            (hooks.after_any_backward, self._after_any_backward),
        ]
        for hook, call in self._clear:
            hook.add(call)
        hooks.after_step.add(self.after_step)
        hooks.before_backward.add(self.look_at_loss)
        hooks.slow_backward.add(self.look_at_bound)
        hooks.new_layout.add(self.begin_anew)
        hooks.measured.add(self.note_step)
        self._want_calls()
        self._labels = LabelLooks(bank.labels, hooks=hooks, on_news=on_news, guard=guard)

    def begin_anew(self, layout: ModelLayout) -> None:
        """The parameters are others: see what reaches them."""
        if not self._wiring.is_over(layout):
            self._hooks.measured.add(self.note_step)

    # -- round forward and backward

    def begin_call(self, root: nn.Module, args: Any, kwargs: Any) -> None:
        """A forward begins."""
        self._guard.run("wiring", self._wiring.begin_call, root, args, kwargs)

    def end_call(self, output: Any = None) -> None:
        """It has returned."""
        self._guard.run("wiring", self._wiring.end_call, output, raised=False)

    def call_raised(self) -> None:
        """It has raised."""
        self._guard.run("wiring", self._wiring.end_call, None, raised=True)

    def note_evaluation(self, with_gradients: bool) -> None:
        """The model is called to be evaluated; perhaps it is always called so."""
        self._guard.run_brief("wiring", self._wiring.ungraded.note_call, with_gradients)

    def note_foreign(self, tensors: Any) -> None:
        """A backward begins that is not taken for one of this model."""
        self._guard.run_brief("wiring", self._wiring.ungraded.note_backward, tensors)

    def look_at_loss(self, tensors: Any, sizes: set[int]) -> None:
        """A backward of this model begins.

        Args:
            tensors: what backward is called on.
            sizes: numbers of samples of the step's forwards.
        """
        self._guard.run("loss shapes", lambda: self._shapes.note(pairs_in_loss(tensors, sizes)))
        self._guard.run("loss inputs", lambda: self._inputs.note(misfit_in_loss(tensors)))
        self._guard.run("first loss", lambda: self._first_loss.note(guess_of(tensors)))
        if (is_one := self._guard.run("batch classes", has_one_class, tensors)) is not None:
            self._note_classes(is_one)
        if self._guard.run("loss weights", has_zero_weight, tensors):
            self._zeros.excuse()
        if (cause := self._guard.run("zero losses", cause_of_zero, tensors)) is not None:
            self._zeros.note_cause(cause)
        if self._shapes.is_over:
            self._hooks.before_backward.remove(self.look_at_loss)

    def look_at_bound(self, tensors: Any, step: int) -> None:
        """The same, at any step: the loss may be below the bound that its function has."""
        if self._loss_bound.wants_look:
            self._guard.run("loss bound", lambda: self._loss_bound.note(step, bounded_function(tensors)))

    def after_backward(self) -> None:
        """A backward of this model has ended."""
        self._guard.run("wiring", self._wiring.after_backward)

    def after_step(self, optimizer: Optimizer, step: int | None) -> None:
        """An optimizer has updated, at a finished step; None before the first."""
        self._guard.run_brief("clearing", self._clearing.after_step, optimizer, step)
        self._end_clearing()

    def _after_any_backward(self) -> None:
        self._guard.run_brief("clearing", self._clearing.after_backward)
        self._end_clearing()

    def _end_clearing(self) -> None:
        if self._clearing.is_over:
            self._hooks.after_step.remove(self.after_step)
            for hook, call in self._clear:
                hook.remove(call)

    # -- every step

    def note_step(self, finished: FinishedStep, measured: MeasuredStep) -> None:
        """Tell which parameters of a finished step were not reached, and whether an update follows."""
        measured.arrive()
        self._guard.run_brief("wiring", self._note_wiring, finished, measured)
        if not self._rows.is_over and finished.opened.backwards and not finished.is_early:
            self._guard.run("embeddings", lambda: self._rows.note(single_rows(self._model.root)))
        if finished.opened.backwards and not finished.is_early:
            self._guard.run("frozen", self._frozen.note_update, measured.step)
        self._want_calls()
        if self._wiring.is_over(measured.layout):
            self._hooks.measured.remove(self.note_step)
        self._on_news()

    def _want_calls(self) -> None:
        """Follow the next forward, or look at what a backward leaves, where something is suspicious."""
        hooks, wiring = self._hooks, self._wiring
        hooks.before_forward.want(self.begin_call, wiring.wants_calls)
        hooks.after_forward.want(self.end_call, wiring.wants_calls)
        hooks.forward_raised.want(self.call_raised, wiring.wants_calls)
        hooks.after_backward.want(self.after_backward, wiring.wants_backward)
        hooks.evaluation_call.want(self.note_evaluation, wiring.wants_evaluations)
        hooks.foreign_backward.want(self.note_foreign, wiring.wants_evaluations)

    def _note_wiring(self, finished: FinishedStep, measured: MeasuredStep) -> None:
        self._wiring.note_step(
            measured.step,
            measured.gradients.missing,
            layout=measured.layout,
            had_backward=finished.opened.backwards > 0,
            is_called=finished.opened.calls > 0,
            is_update=not finished.is_early,
            is_zero=not measured.gradients.max_abs.any(),
            missed=finished.opened.missed,
        )
