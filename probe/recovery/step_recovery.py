"""Acts before the update of a step whose loss or gradients are bad, as `watch(recovery=...)` asked for it.

Made by the step tracker where the option is given; told of each finished step, then of the update that is
about to be made. On the training thread, in the session's guard; a user's own function runs outside of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from torch.optim.optimizer import Optimizer

from .. import torch_private
from ..clipping import clip_by_norm
from ..errors import AnomalyError
from ..frames import MeasuredStep
from ..guard import Guard
from ..incidents import IncidentReporter
from ..watched_model import WatchedModel
from .gradient_repair import replace_nonfinite, zero_gradients
from .kept_state import GoodState, keep_good_state, versions
from .ledger import Ledger
from .options import Recovery, Strategy
from .other_ranks import has_other_ranks
from .update_skip import SkippedUpdate, parameters_of, was_moved

_PART: Final = "recovery"
_UNDO: Final = "recovery, putting back"
_SHARDED: Final = (
    "this rank holds only its own part of the parameters and cannot decide for the others (it would leave "
    "out an update that they make)"
)
_NOT_REDUCED: Final = (
    "the gradients are this rank's own, not averaged over the ranks, so that each rank would decide by "
    "itself and the replicas would differ"
)
_EXPLOSION_RANKS: Final = (
    "an explosion is judged by each rank's own history, and replicas that decide by themselves would differ"
)
_SCALED: Final = (
    "the optimizer unscales the gradients inside its own step, and they cannot be judged or clipped before it"
)
_MOVED: Final = (
    "the optimizer has moved the parameters before it evaluated its closure (sharpness-aware minimisation, "
    "say), and what they were before is not known"
)


@dataclass(slots=True)
class _Verdict:
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
        return self.loss is not None and not math.isfinite(self.loss)

    @property
    def cause(self) -> str:
        if self.loss_is_bad:
            return f"Loss is {self.loss} at step {self.step}"
        if self.gradients_are_bad:
            return f"Gradients are not finite at step {self.step}"
        return f"Gradients explode at step {self.step} (global norm {self.total_norm:.3g})"


class StepRecovery:
    """The recoveries of one session.

    Attributes:
        judges_explosions: whether each step has to be judged before its update.
    """

    def __init__(
        self,
        options: Recovery,
        model: WatchedModel,
        *,
        incidents: IncidentReporter,
        guard: Guard,
        optimizers: Callable[[], list[Optimizer]],
    ) -> None:
        self.judges_explosions = options.explosion is not None
        self._options, self._model, self._guard = options, model, guard
        self._optimizers = optimizers
        self._ledger = Ledger(options, incidents)
        self._verdict: _Verdict | None = None
        self._skipped: SkippedUpdate | None = None
        self._before_closure: Mapping[int, object] | None = None
        self._good: GoodState | None = None
        self._good_steps = 0
        self._newest_good: int | None = None
        self._counted_step: int | None = None

    # -- told by the tracker, in the order of a step

    def begin_backward(self, *, is_judged: bool) -> None:
        """A backward begins; `is_judged` says that the open step was found bad already."""
        self._end_skip()
        if not is_judged:
            self._verdict = None

    def note(self, measured: MeasuredStep, kinds: frozenset[str], *, is_early: bool) -> None:
        """A step is measured and judged.

        Args:
            measured: its numbers.
            kinds: of what the detectors found at it.
            is_early: judged right after a backward or before clipping, not at the update.
        """
        known = self._verdict
        if known is not None and known.step == measured.step and known.is_done:
            # The other optimizer of this step: its gradients are of the same backward.
            return
        verdict = _Verdict(
            step=measured.step,
            loss=measured.loss.value,
            gradients_are_bad=not measured.gradients.is_finite,
            explodes=self.judges_explosions and "gradient_explosion" in kinds,
            is_early=is_early,
            total_norm=measured.total_norm,
        )
        is_bad = verdict.loss_is_bad or verdict.gradients_are_bad or verdict.explodes
        self._verdict = verdict if is_bad else None
        self._newest_good = None if is_bad else measured.step

    def before_closure(self, optimizer: Optimizer) -> None:
        """An optimizer's step begins that will evaluate a closure before its update."""
        self._before_closure = self._guard.run(_PART, versions, optimizer)

    def before_update(self, optimizer: Optimizer) -> None:
        """Do what is asked for; the update is about to be made. A user's function may raise from here."""
        self._end_skip()
        verdict = self._verdict
        action = None if verdict is None else self._guard.run(_PART, self._decide, verdict, optimizer)
        if self._newest_good is not None and not self._ledger.is_closed:
            self._guard.run(_PART, self._follow_good_step, self._newest_good, optimizer)
        if verdict is None or action is None:
            return
        if not isinstance(action, str):
            if not verdict.is_done and not self._ask(action, verdict, optimizer):
                self._verdict = None
                return
            action = "strategy"
        self._guard.run(_PART, self._act, action, verdict, optimizer)

    def after_update(self) -> None:
        """The optimizer's step has returned."""
        self._end_skip()
        self._before_closure = None

    def stop(self) -> None:
        """Put back what an update under way was to leave, and let go of all copies; idempotent."""
        self._end_skip()
        self._good = self._verdict = None

    # -- good steps

    def _follow_good_step(self, step: int, optimizer: Optimizer) -> None:
        """Count a good step, and keep its state where that is due."""
        self._newest_good = None
        if step == self._counted_step:
            # Another optimizer of the same step.
            return
        self._counted_step = step
        self._ledger.note_good_step()
        if not self._options.keeps_state:
            return
        if self._good is None or self._good_steps >= self._options.keep_state_every:
            self._good_steps = 0
            known = self._optimizers()
            with torch_private.own_operations():
                self._good = keep_good_state(
                    self._model.root,
                    known if any(one is optimizer for one in known) else [*known, optimizer],
                    step,
                    on_host=self._options.keep_state_on == "host",
                    with_generators=self._options.keep_random_state,
                )
        self._good_steps += 1

    # -- bad steps

    def _decide(self, verdict: _Verdict, optimizer: Optimizer) -> str | Strategy | None:
        """What is to be done about a bad step; None for nothing, of which the reason is told."""
        if self._ledger.is_closed:
            return None
        is_distributed = has_other_ranks()
        if verdict.is_early and not verdict.is_done:
            # The script may have mended the gradients since, or has spread them by clipping.
            verdict.gradients_are_bad = not self._model.measure_gradients().is_finite
        if is_distributed and not verdict.gradients_are_bad:
            # To every rank that knows of nothing it is a good step: all have to count the same ones.
            self._newest_good = verdict.step
        # The loss is this rank's own even where the gradients are not.
        is_nonfinite = verdict.gradients_are_bad or (verdict.loss_is_bad and not is_distributed)
        action = self._options.nonfinite if is_nonfinite else None
        if action is None and verdict.explodes:
            action = self._options.explosion
        if action is None:
            return None
        reason = self._why_not(optimizer, is_nonfinite=is_nonfinite, is_distributed=is_distributed)
        if reason is not None:
            # What a GradScaler's optimizer finds not finite it passes over by itself: nothing to tell.
            if reason != _SCALED or not is_nonfinite:
                self._ledger.note_declined(reason, verdict.step)
            return None
        if not verdict.is_done and not self._ledger.allows(verdict.step, verdict.cause):
            return None
        return action

    def _why_not(self, optimizer: Optimizer, *, is_nonfinite: bool, is_distributed: bool) -> str | None:
        if getattr(optimizer, "grad_scale", None) is not None:
            return _SCALED
        if self._model.is_sharded:
            return _SHARDED
        if is_distributed and not self._model.is_reduced:
            return _NOT_REDUCED
        if is_distributed and not is_nonfinite:
            return _EXPLOSION_RANKS
        before = self._before_closure
        if before is not None and was_moved(optimizer, before, versions(optimizer)):
            return _MOVED
        return None

    def _ask(self, strategy: Strategy, verdict: _Verdict, optimizer: Optimizer) -> bool:
        """Call the user's function, outside of the guard: what it raises is the user's."""
        context = {
            "step": verdict.step,
            "kind": self._kind(verdict),
            "loss": verdict.loss,
            "gradient_norm": verdict.total_norm,
            "model": self._model.root,
            "optimizer": optimizer,
            "recovered": self._ledger.count,
        }
        return bool(strategy(AnomalyError(verdict.cause), context))

    @staticmethod
    def _kind(verdict: _Verdict) -> str:
        if verdict.loss_is_bad:
            return "nonfinite_loss"
        return "nonfinite_gradient" if verdict.gradients_are_bad else "gradient_explosion"

    def _act(self, action: str, verdict: _Verdict, optimizer: Optimizer) -> None:
        with torch_private.own_operations():
            action, done = self._carry_out(action, verdict, optimizer)
        if done and not verdict.is_done:
            verdict.is_done = True
            self._ledger.note_action(action, f"{verdict.cause}: {done}", verdict.step)

    def _carry_out(self, action: str, verdict: _Verdict, optimizer: Optimizer) -> tuple[str, str]:
        """Take an action; returns what was really done and its description, "" where nothing had to be."""
        if action == "zero":
            zero_gradients(parameters_of(optimizer))
            return action, (
                "the update is made with gradients of 0 (momentum and weight decay still move the weights)."
            )
        if action == "replace":
            return action, self._replace(verdict)
        if action == "clip":
            return action, self._clip(verdict)
        left = "the update is left out; parameters, optimizer state and step counts stay as they were."
        if action == "rollback":
            action, left = self._roll_back(verdict, left)
        self._skipped = SkippedUpdate(optimizer)
        if action == "strategy":
            left = f"the recovery strategy said that the run can go on: {left}"
        return action, left

    def _replace(self, verdict: _Verdict) -> str:
        found = self._count_nonfinite()
        if not found and not verdict.is_done:
            return ""
        value = self._options.replacement
        replace_nonfinite(self._model.layout.parameters, value)
        return (
            f"{found:,} gradient elements that were not finite are replaced by {value:g}. This hides where "
            "they came from: the event of this step names it."
        )

    def _clip(self, verdict: _Verdict) -> str:
        limit = self._options.max_norm
        if limit is None or verdict.is_done:
            return ""
        parameters = self._model.layout.parameters
        found = self._count_nonfinite()
        if found:
            replace_nonfinite(parameters, 0.0)
        norm = self._model.measure_gradients().total_norm
        if norm is None or (norm <= limit and not found):
            return ""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        clip_by_norm(gradients, total_norm=norm, max_norm=limit)
        replaced = f"{found:,} elements that were not finite are replaced by 0 and " if found else ""
        return f"{replaced}the gradients are clipped from a global norm of {norm:.3g} to {limit:g}."

    def _count_nonfinite(self) -> int:
        measured = self._model.measure_gradients()
        return int(measured.nan_count.sum() + measured.inf_count.sum())

    def _roll_back(self, verdict: _Verdict, left: str) -> tuple[str, str]:
        if self._good is None:
            return "skip", f"there is no good state to go back to yet: {left}"
        if not verdict.is_done:
            try:
                self._good.restore(self._model.root)
            except ValueError as error:
                return "skip", f"going back to step {self._good.step} is not possible ({error}): {left}"
        return "rollback", (
            f"parameters, buffers and optimizer state are those of step {self._good.step} again, and the "
            "update is left out."
        )

    def _end_skip(self) -> None:
        skipped, self._skipped = self._skipped, None
        if skipped is not None and self._guard.run(_UNDO, _ended, skipped) is None:
            # What cannot be put back is not to be left out: no update is touched any more.
            self._ledger.is_closed = True


def _ended(skipped: SkippedUpdate) -> bool:
    skipped.end()
    return True
