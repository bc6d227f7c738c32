"""What is wrong with a step that is about to be updated, and why nothing can be done about it, if so."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from torch.optim.optimizer import Optimizer

from ...attach.watched_model import WatchedModel
from ...compat import torch_engine
from ...detectors.nonfinite import spell
from ...settings.recovery_options import Strategy

_ALL_RANKS: Final = (
    "Let all ranks decide in the script: all-reduce whether the loss and the gradient norm are finite, and "
    "call step() only if they are"
)
_SHARDED: Final = (
    "this rank holds only its own part of the parameters and cannot decide for the others (it would skip "
    f"an update that they make). {_ALL_RANKS}"
)
_NOT_REDUCED: Final = (
    "the gradients are this rank's own, or its part of them, and not averaged over the ranks by "
    "DistributedDataParallel, so that each rank would decide by itself and the models would differ. "
    f"{_ALL_RANKS}"
)
_EXPLOSION_RANKS: Final = (
    "an explosion is judged by each rank's own history, and replicas that decide by themselves would differ"
)
_LOSS_RANKS: Final = (
    "the loss is this rank's own and the others do not know of it, while the gradients, which all ranks "
    "share, are finite"
)
_SCALED: Final = (
    "the optimizer unscales the gradients inside its own step, and they cannot be judged or clipped before it"
)
_MOVED: Final = (
    "the optimizer has moved the parameters before it evaluated its closure (as sharpness-aware minimisation "
    "does), and their earlier values are not known"
)
_IN_BACKWARD: Final = (
    "the optimizers step inside the backward, one parameter at a time: some are updated already, and the "
    "rest of the backward needs the others as they are. Step after the backward, or skip such a batch in "
    "the script"
)
UNSEEN_WHAT: Final = "Steps such as step {step} are not recovered"
UNSEEN: Final = (
    "the parameters are updated, and no optimizer hook runs before that (a compiled optimizer.step, or an "
    "update by hand). Compile the model alone and call optimizer.step as it is, or check loss and gradients "
    "in the script"
)
_HALF_UPDATED: Final = (
    "another part of the model is updated already, and no optimizer hook has run for it (a compiled "
    "optimizer.step beside one that is not, say). Compile the model alone"
)
_SILENT: Final = ""
_WHOLE_IN_BACKWARD: Final = frozenset({"skip", "zero", "replace"})
"""Actions on one parameter that do not depend on the others."""


@dataclass(slots=True)
class Verdict:
    """What is wrong with the step that is about to be updated."""

    step: int
    loss: float | None
    gradients_are_bad: bool
    explodes: bool
    is_early: bool
    """Whether it was judged before its last backward, or before clipping."""
    total_norm: float | None
    is_done: bool = False
    """Whether an action was taken: for another optimizer of the same step it is repeated, not told again."""

    @property
    def loss_is_bad(self) -> bool:
        """Whether there is a loss that is NaN or Inf."""
        return self.loss is not None and not math.isfinite(self.loss)

    @property
    def is_nonfinite(self) -> bool:
        """Whether loss or gradients are."""
        return self.gradients_are_bad or self.loss_is_bad

    @property
    def kind(self) -> str:
        """Of the event of the fault."""
        if self.loss_is_bad:
            return "nonfinite_loss"
        return "nonfinite_gradient" if self.gradients_are_bad else "gradient_explosion"

    @property
    def cause(self) -> str:
        """The beginning of a sentence."""
        if self.loss_is_bad:
            return f"Loss is {'not finite' if self.loss is None else spell(self.loss)} at step {self.step}"
        if self.gradients_are_bad:
            return f"Gradients are not finite at step {self.step}"
        return f"Gradients explode at step {self.step} (global norm {self.total_norm:.3g})"


def why_not(
    verdict: Verdict,
    action: str | Strategy,
    optimizer: Optimizer,
    *,
    model: WatchedModel,
    is_distributed: bool,
    was_moved: bool,
    is_updated_elsewhere: bool,
) -> str | None:
    """Why a step is left as it is: the rest of a sentence; "" for nothing to tell; None where it need not be.

    Args:
        verdict: what is wrong.
        action: that is asked for.
        optimizer: about to update.
        model: that it updates.
        is_distributed: whether other ranks train with this one.
        was_moved: whether the optimizer has written to its parameters before its closure.
        is_updated_elsewhere: whether other parameters of the model were updated already.
    """
    if getattr(optimizer, "grad_scale", None) is not None:
        # What a GradScaler's optimizer finds not finite it passes over by itself.
        return _SILENT if verdict.is_nonfinite else _SCALED
    if is_distributed:
        reason = _why_not_on_ranks(verdict, model)
        if reason is not None:
            return reason
    if torch_engine.in_backward() and not (
        verdict.loss_is_bad and (not isinstance(action, str) or action in _WHOLE_IN_BACKWARD)
    ):
        return _IN_BACKWARD
    if is_updated_elsewhere:
        return _HALF_UPDATED
    return _MOVED if was_moved else None


def _why_not_on_ranks(verdict: Verdict, model: WatchedModel) -> str | None:
    if model.is_sharded:
        return _SHARDED
    if not verdict.gradients_are_bad and verdict.loss_is_bad:
        return _LOSS_RANKS
    if not model.is_reduced:
        return _NOT_REDUCED
    return None if verdict.gradients_are_bad else _EXPLOSION_RANKS
