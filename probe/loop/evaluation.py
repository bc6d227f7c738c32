"""The validation loss of a script that logs none: what torch's loss functions return while it evaluates.

Used by the step tracker on the training thread. An evaluation begins with a call of the watched model
without gradients, or in eval mode, and ends with the next training call; its loss is the mean of the
results in between, weighted by the size of the batches, of each set of samples that it goes over
(`evaluated_splits.py`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..actions.step_hooks import StepHooks
from ..attach.loader_passes import loader_passes
from ..attach.loss_functions import SeenLoss, loss_functions
from ..compat import torch_modes
from ..compat.host_copy import is_capturing
from ..detectors.overfitting import LOGGED_NAMES
from ..guard import Guard
from ..step.open_step import LogValue
from .evaluated_splits import EvaluatedSplits

SERIES: Final = "val_loss"


class EvaluationLoss:
    """Follows one model's evaluations.

    Args:
        hooks: an evaluation that is under way is called at every training call and backward, to end.
        log: takes the loss of one that is over.
        on_nonfinite: called where that is known to be NaN or infinite.
        guard: runs what may fail.

    Attributes:
        is_open: whether an evaluation is under way.
    """

    def __init__(
        self,
        hooks: StepHooks,
        *,
        log: Callable[[dict[str, LogValue]], None],
        on_nonfinite: Callable[[], None],
        guard: Guard,
    ) -> None:
        self._hooks, self._log, self._guard = hooks, log, guard
        self._on_nonfinite = on_nonfinite
        self.is_open = False
        self._trains_in_eval_mode = False
        self._begin_anew()
        hooks.evaluation_call.add(self.begin)
        hooks.logged.add(self.note_logged)
        hooks.stop.add(self.abandon)

    def _begin_anew(self) -> None:
        self._splits = EvaluatedSplits()
        self._thread = 0
        self._takes_gradients = False

    def begin(self, with_gradients: bool) -> None:
        """The model is called without gradients, or in eval mode with them; may be said at every call."""
        if with_gradients and self._trains_in_eval_mode:
            return
        self._takes_gradients = with_gradients
        if self.is_open:
            return
        self.is_open, self._thread = True, threading.get_ident()
        self._hooks.training_call.add(self.end)
        self._hooks.before_any_backward.add(self.note_backward, first=True)
        self._guard.run(SERIES, loss_functions.add, self)
        loader_passes.add(self)

    def note_loss(self, seen: SeenLoss) -> None:
        """Take a result, if it is one of the evaluation's loss."""
        if self.is_open and self._thread == threading.get_ident():
            self._guard.run_brief(SERIES, self._take, seen)

    def begin_pass(self, iterator: object) -> None:
        """A pass over a DataLoader begins."""
        self.end_pass(iterator)

    def end_pass(self, iterator: object) -> None:
        """It has run out: what is evaluated after it is another set of samples."""
        if self.is_open and self._thread == threading.get_ident():
            self._splits.end_pass()

    def end(self) -> None:
        """A training call begins: log the evaluation's loss, where one was seen."""
        if not self.is_open:
            return
        means = self._guard.run(SERIES, self._splits.means) or []
        is_bad = self._splits.is_known_to_be_bad
        self.abandon()
        if is_bad:
            self._on_nonfinite()
        if means:
            names = [SERIES, *(f"{SERIES}/{number}" for number in range(2, len(means) + 1))]
            self._guard.run(SERIES, self._log, dict(zip(names, means, strict=True)))

    def note_backward(self) -> None:
        """A backward begins: what was called in eval mode with gradients is being trained."""
        if self.is_open and self._takes_gradients:
            self._trains_in_eval_mode = True
            self.abandon()

    def abandon(self) -> None:
        """Forget the evaluation that is under way; idempotent."""
        self.is_open = False
        self._hooks.training_call.remove(self.end)
        self._hooks.before_any_backward.remove(self.note_backward)
        loss_functions.remove(self)
        loader_passes.remove(self)
        self._begin_anew()

    def note_logged(self, names: set[str]) -> None:
        """The script has logged series of these names; where it tells of its loss itself, listen no more."""
        if not LOGGED_NAMES.isdisjoint(names):
            self._hooks.evaluation_call.remove(self.begin)
            self._hooks.logged.remove(self.note_logged)
            self.abandon()

    def _take(self, seen: SeenLoss) -> None:
        if torch.is_grad_enabled() and not self._takes_gradients:
            return
        splits = self._splits
        if splits.function is None:
            splits.function = seen.function
        # Others are parts of the loss or measures beside it; their sum would be neither.
        if seen.function != splits.function or _must_not_be_touched(seen.result):
            return
        splits.take(seen, sys._getframe(1))


def _must_not_be_touched(result: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch_modes.is_jit_tracing():
        return True
    if torch_modes.is_functorch_wrapped(result):
        return True
    return result.is_cuda and is_capturing()
