"""Acts before the update of a step whose loss or gradients are bad, as `watch(recovery=...)` asked for it.

Made with the session where the option is given; called by the hooks at each finished step, then at the update
that is about to be made. On the training thread, in the session's guard; a user's own function runs outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from torch.optim.optimizer import Optimizer

from ...attach.watched_model import WatchedModel
from ...compat import torch_modes
from ...compat.other_ranks import has_other_ranks
from ...errors import AnomalyError
from ...guard import Guard
from ...incidents.incidents import IncidentReporter
from ...incidents.verdict import Verdict as StepVerdict
from ...settings.config import ProbeConfig
from ...settings.recovery_options import Recovery, Strategy, as_recovery
from ...step.clipping import clip_by_norm
from ...step.frames import MeasuredStep
from ...step.open_step import FinishedStep
from ..step_hooks import StepHooks

if TYPE_CHECKING:
    from .decline import Verdict
    from .kept_state import GoodState
    from .update_skip import SkippedUpdate

_PART: Final = "recovery"
_UNDO: Final = "recovery, putting back"
_CERTAIN: Final = 2
"""Successive updates that no hook told of; one may be the first pass of two (SAM)."""


class StepRecovery:
    """The recoveries of one session.

    Attributes:
        judges_explosions: whether each step has to be judged before its update.
    """

    @classmethod
    def of(
        cls,
        config: ProbeConfig,
        model: WatchedModel,
        *,
        incidents: IncidentReporter,
        guard: Guard,
        optimizers: Callable[[], list[Optimizer]],
    ) -> StepRecovery | None:
        """Make those that a session was asked for; None where it was not."""
        options = as_recovery(config.recovery)
        if options is None:
            return None
        return cls(options, model, incidents=incidents, guard=guard, optimizers=optimizers)

    def __init__(
        self,
        options: Recovery,
        model: WatchedModel,
        *,
        incidents: IncidentReporter,
        guard: Guard,
        optimizers: Callable[[], list[Optimizer]],
    ) -> None:
        from .ledger import Ledger

        self.judges_explosions = options.explosion is not None
        self._options, self._model, self._guard = options, model, guard
        self._optimizers = optimizers
        self._ledger = Ledger(options, incidents)
        self._verdict: Verdict | None = None
        self._skipped: SkippedUpdate | None = None
        self._before_closure: Mapping[int, object] | None = None
        self._good: GoodState | None = None
        self._good_steps = 0
        self._newest_good: int | None = None
        self._counted_step: int | None = None
        self._unseen_updates = 0
        self._at_verdict: Mapping[int, object] | None = None
        """The parameters at the newest early verdict, until an optimizer's hook tells of the update."""

    def add_to(self, hooks: StepHooks) -> None:
        """Have everything here called from now on."""
        hooks.backward_begun.add(self.begin_backward)
        hooks.before_closure.add(self.before_closure)
        hooks.judged.add(self.note)
        hooks.before_update.add(self.before_update)
        hooks.after_update.add(self.after_update)
        hooks.stop.add(self.stop)

    # -- called by the hooks, in the order of a step

    def begin_backward(self, is_judged: bool) -> None:
        """A backward begins; `is_judged` says that the open step was found bad already."""
        self._end_skip()
        if self._at_verdict is not None and self._verdict is not None:
            self._guard.run(_PART, self._look_for_unseen_update, self._verdict.step)
        if not is_judged:
            self._verdict = None

    def note(self, finished: FinishedStep, measured: MeasuredStep, verdict: StepVerdict) -> None:
        """A step is measured and judged."""
        kinds = verdict.kinds if self.judges_explosions else frozenset()
        self._guard.run(_PART, self._note, finished, measured, kinds)

    def _note(self, finished: FinishedStep, measured: MeasuredStep, kinds: frozenset[str]) -> None:
        from .decline import Verdict
        from .kept_state import versions

        if finished.is_updated:
            self._verdict = self._newest_good = None
            self._note_unseen_update(measured.step)
            return
        known = self._verdict
        if known is not None and known.step == measured.step and known.is_done:
            # The other optimizer of this step: its gradients are of the same backward.
            return
        verdict = Verdict(
            step=measured.step,
            loss=measured.loss.value,
            gradients_are_bad=not measured.gradients.is_finite,
            explodes=self.judges_explosions and "gradient_explosion" in kinds,
            is_early=finished.is_early,
            total_norm=measured.total_norm,
        )
        is_bad = verdict.loss_is_bad or verdict.gradients_are_bad or verdict.explodes
        self._verdict = verdict if is_bad else None
        self._newest_good = None if is_bad else measured.step
        if is_bad and finished.is_early:
            self._at_verdict = versions(self._model.layout.parameters)

    def before_closure(self, optimizer: Optimizer) -> None:
        """An optimizer's step begins that will evaluate a closure before its update."""
        from .kept_state import versions
        from .update_skip import parameters_of

        self._before_closure = self._guard.run(_PART, versions, parameters_of(optimizer))

    def before_update(self, optimizer: Optimizer) -> None:
        """Do what is asked for; the update is about to be made. A user's function may raise from here."""
        self._end_skip()
        self._unseen_updates = 0
        verdict = self._verdict
        action = None if verdict is None else self._guard.run(_PART, self._decide, verdict, optimizer)
        self._at_verdict = None
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
        self._good = self._verdict = self._at_verdict = None

    # -- updates that no hook tells of

    def _look_for_unseen_update(self, step: int) -> None:
        """A backward begins after a bad step of whose update no hook has told: see whether it was made."""
        from .kept_state import versions

        before, self._at_verdict = self._at_verdict, None
        if before != versions(self._model.layout.parameters):
            self._note_unseen_update(step)

    def _note_unseen_update(self, step: int) -> None:
        from .decline import UNSEEN, UNSEEN_WHAT

        self._unseen_updates += 1
        if self._unseen_updates == _CERTAIN:
            self._ledger.note_declined(UNSEEN, step, what=UNSEEN_WHAT)

    # -- good steps

    def _follow_good_step(self, step: int, optimizer: Optimizer) -> None:
        """Count a good step, and keep its state where that is due."""
        from .kept_state import keep_good_state

        self._newest_good = None
        on_host = self._options.keep_state_on == "host"
        if self._good is not None:
            self._good.add(optimizer, on_host=on_host)
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
            with torch_modes.own_operations():
                self._good = keep_good_state(
                    self._model.root,
                    known if any(one is optimizer for one in known) else [*known, optimizer],
                    step,
                    on_host=on_host,
                    with_generators=self._options.keep_random_state,
                )
        self._good_steps += 1

    # -- bad steps

    def _decide(self, verdict: Verdict, optimizer: Optimizer) -> str | Strategy | None:
        """What is to be done about a bad step; None for nothing, of which the reason is told."""
        from .decline import why_not

        if self._ledger.is_closed:
            return None
        is_distributed = has_other_ranks()
        if verdict.is_early and not verdict.is_done:
            # The script may have mended the gradients since, or has spread them by clipping.
            verdict.gradients_are_bad = not self._model.measure_gradients().is_finite
        if is_distributed and not verdict.gradients_are_bad:
            # To every rank that knows of nothing it is a good step: all have to count the same ones.
            self._newest_good = verdict.step
        action = self._options.nonfinite if verdict.is_nonfinite else None
        if action is None and verdict.explodes:
            action = self._options.explosion
        if action is None:
            return None
        reason = why_not(
            verdict,
            action,
            optimizer,
            model=self._model,
            is_distributed=is_distributed,
            was_moved=self._was_moved(optimizer),
            is_updated_elsewhere=self._is_updated_elsewhere(optimizer),
        )
        if reason is not None:
            if reason:
                self._ledger.note_declined(reason, verdict.step)
            return None
        if not verdict.is_done and not self._ledger.allows(verdict.step, verdict.cause):
            return None
        return action

    def _was_moved(self, optimizer: Optimizer) -> bool:
        from .kept_state import versions
        from .update_skip import parameters_of, was_moved

        before = self._before_closure
        return before is not None and was_moved(optimizer, before, versions(parameters_of(optimizer)))

    def _is_updated_elsewhere(self, optimizer: Optimizer) -> bool:
        """Whether parameters that are not of an optimizer were updated since the verdict, unseen."""
        from .kept_state import renormalised_weights, versions
        from .update_skip import parameters_of

        before = self._at_verdict
        if before is None:
            return False
        now, own = versions(self._model.layout.parameters), set(map(id, parameters_of(optimizer)))
        moved = {key for key, state in before.items() if key in now and key not in own and now[key] != state}
        return not moved <= renormalised_weights(self._model.root.modules())

    def _ask(self, strategy: Strategy, verdict: Verdict, optimizer: Optimizer) -> bool:
        """Call the user's function, outside of the guard: what it raises is the user's."""
        context = {
            "step": verdict.step,
            "kind": verdict.kind,
            "loss": verdict.loss,
            "gradient_norm": verdict.total_norm,
            "model": self._model.root,
            "optimizer": optimizer,
            "recovered": self._ledger.count,
        }
        return bool(strategy(AnomalyError(verdict.cause), context))

    def _act(self, action: str, verdict: Verdict, optimizer: Optimizer) -> None:
        from .bad_buffers import describe_nan_buffers

        with torch_modes.own_operations():
            action, done = self._carry_out(action, verdict, optimizer)
            if done and verdict.is_nonfinite and not verdict.is_done and action != "rollback":
                done += describe_nan_buffers(self._model.root)
        if done and not verdict.is_done:
            verdict.is_done = True
            self._ledger.note_action(action, f"{verdict.cause}: {done}", verdict.step)

    def _carry_out(self, action: str, verdict: Verdict, optimizer: Optimizer) -> tuple[str, str]:
        """Take an action; returns what was really done and its description, "" where nothing had to be."""
        from .gradient_repair import zero_gradients
        from .update_skip import SkippedUpdate, parameters_of

        if action == "zero":
            zero_gradients(parameters_of(optimizer))
            return action, (
                "the update is applied with zero gradients (momentum and weight decay still "
                "change the weights)."
            )
        if action == "replace":
            return action, self._replace(verdict)
        if action == "clip":
            return action, self._clip(verdict)
        left = "the update is skipped; parameters, optimizer state and step counts are unchanged."
        if action == "rollback":
            action, left = self._roll_back(verdict, left)
        self._skipped = SkippedUpdate(optimizer)
        if action == "strategy":
            left = f"the recovery strategy said that the run can go on: {left}"
        return action, left

    def _replace(self, verdict: Verdict) -> str:
        from .gradient_repair import replace_nonfinite

        found = self._count_nonfinite()
        if not found and not verdict.is_done:
            return ""
        value = self._options.replacement
        replace_nonfinite(self._model.layout.parameters, value)
        return (
            f"{found:,} gradient elements that were not finite are replaced by {value:g}. This hides where "
            "they came from: the event of this step names it."
        )

    def _clip(self, verdict: Verdict) -> str:
        from .gradient_repair import replace_nonfinite

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
        if norm <= limit:
            return f"{replaced}the rest, of a global norm of {norm:.3g}, is within the limit of {limit:g}."
        return f"{replaced}the gradients are clipped from a global norm of {norm:.3g} to {limit:g}."

    def _count_nonfinite(self) -> int:
        measured = self._model.measure_gradients()
        return int(measured.nan_count.sum() + measured.inf_count.sum())

    def _roll_back(self, verdict: Verdict, left: str) -> tuple[str, str]:
        if self._good is None:
            return "skip", f"there is no good state to restore yet: {left}"
        if not verdict.is_done:
            try:
                self._good.restore(self._model.root)
            except ValueError as error:
                return "skip", f"step {self._good.step} cannot be restored ({error}): {left}"
        return "rollback", (
            f"parameters, buffers and optimizer state are restored from step {self._good.step}, and the "
            "update is skipped."
        )

    def _end_skip(self) -> None:
        skipped, self._skipped = self._skipped, None
        if skipped is not None and self._guard.run(_UNDO, _ended, skipped) is None:
            # What cannot be put back is not to be left out: no update is touched any more.
            self._ledger.is_closed = True


def _ended(skipped: SkippedUpdate) -> bool:
    skipped.end()
    return True
