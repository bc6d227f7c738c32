"""What the optional parts of a session want to be called with, at each point of a step.

A hook is one tuple of callables, empty where nobody wants any: a step asks no part whether it is on. The
parts put their callables in when the session is built, and take them out when they have seen enough; the
tuple is replaced, never changed, for that may be in the middle of a call. Each callable runs in the guard of
its part. Called by the step tracker, the measures and the pipeline, on the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from torch import nn
from torch.optim.optimizer import Optimizer

from ..attach.layout import ModelLayout
from ..forensics.capture import RootCapture
from ..incidents.evidence import StepEvidence
from ..incidents.verdict import Verdict
from ..step.frames import MeasuredStep
from ..step.open_step import FinishedStep

P = ParamSpec("P")
R = TypeVar("R")
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class Hook(Generic[P, R]):
    """One point of a step.

    Attributes:
        calls: what is called there, in this order.
    """

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: tuple[Callable[P, R], ...] = ()

    def add(self, call: Callable[P, R], *, first: bool = False) -> None:
        """Have `call` called from now on, after the others or before them; once, however often."""
        if call not in self.calls:
            self.calls = (call, *self.calls) if first else (*self.calls, call)

    def remove(self, call: Callable[P, R]) -> None:
        """Have it called no more. Idempotent."""
        self.calls = tuple(other for other in self.calls if other != call)

    def want(self, call: Callable[P, R], is_wanted: bool) -> None:
        """Have it called, or not."""
        if is_wanted:
            self.add(call)
        else:
            self.remove(call)


class StepHooks:
    """The hooks of one session, in the order of a step."""

    def __init__(self) -> None:
        self.inputs: Hook[[nn.Module, Any, Any, int], Arguments] = Hook()
        """A training forward is about to begin at step `step`; returns what it is called with instead. May
        raise what the user asked for."""
        self.training_call: Hook[[], None] = Hook()
        """It is no evaluation."""
        self.before_forward: Hook[[nn.Module, Any, Any], None] = Hook()
        self.after_forward: Hook[[Any], None] = Hook()
        self.forward_raised: Hook[[], None] = Hook()
        self.outputs: Hook[[Any, int], Any] = Hook()
        """It has returned; returns what the script is given. May raise what the user asked for."""
        self.before_any_backward: Hook[[], None] = Hook()
        """Any backward begins, of this model or of another one."""
        self.before_backward: Hook[[Any, set[int]], None] = Hook()
        """A backward of this model begins: what it is called on, and the forwards' numbers of samples."""
        self.backward_begun: Hook[[bool], None] = Hook()
        """It is noted; whether the open step was found bad already."""
        self.after_any_backward: Hook[[], None] = Hook()
        self.after_backward: Hook[[], None] = Hook()
        self.before_closure: Hook[[Optimizer], None] = Hook()
        """An optimizer's step begins that will evaluate a closure before its update."""
        self.measured: Hook[[FinishedStep, MeasuredStep], None] = Hook()
        """A step's gradients are measured, nothing else of it is. What is called may wait for those on
        their way from a device: no step is judged late as long as there is one."""
        self.judged: Hook[[FinishedStep, MeasuredStep, Verdict], None] = Hook()
        """It is judged, or waits for others."""
        self.accounted: Hook[[MeasuredStep, Callable[[], StepEvidence] | None], None] = Hook()
        """Its time is known; what gives what is at hand of it, None where its update was made unseen."""
        self.before_update: Hook[[Optimizer], None] = Hook()
        self.after_update: Hook[[], None] = Hook()
        self.after_step: Hook[[Optimizer, int | None], None] = Hook()
        """An optimizer has updated, at this finished step; None before the first."""
        self.complete: Hook[[MeasuredStep], None] = Hook()
        """Nothing is added to a finished step any more."""
        self.pause: Hook[[], None] = Hook()
        """The training thread is to wait, as soon as it can."""
        self._of_steps: tuple[Hook[..., Any], ...] = tuple(vars(self).values())
        # From here on: now and then, and no reason to follow every step.
        self.slow_backward: Hook[[Any, int], None] = Hook()
        """A backward of this model begins that C does not follow: what it is called on, the step's number."""
        self.foreign_backward: Hook[[Any], None] = Hook()
        """A backward begins that is not taken for one of this model: what it is called on."""
        self.unused_forward: Hook[[Sequence[RootCapture], int], None] = Hook()
        """No backward has followed these forwards in train mode; the number of the step under way."""
        self.evaluation_call: Hook[[bool], None] = Hook()
        """The model is called to be evaluated; whether gradients are enabled."""
        self.evaluation_inputs: Hook[[nn.Module, Any, Any, int], Arguments] = Hook()
        """An outermost call with gradients disabled is about to begin; as `inputs`."""
        self.evaluation_outputs: Hook[[Any, int], Any] = Hook()
        """It has returned; as `outputs`."""
        self.logged: Hook[[set[str]], None] = Hook()
        """The script has logged series of these names."""
        self.new_layout: Hook[[ModelLayout], None] = Hook()
        """The watched parameters are others now."""
        self.stop: Hook[[], None] = Hook()
        """The session ends, or has been left behind in another process."""
        self.close: Hook[[int], None] = Hook()
        """All steps are written; the number of the one that would be next."""

    @property
    def want_steps(self) -> bool:
        """Whether somebody has to be called at every step: then C cannot follow them."""
        return any(hook.calls for hook in self._of_steps)

    @property
    def act_on_verdicts(self) -> bool:
        """Whether somebody acts on what is found at a step before its update."""
        return bool(self.judged.calls or self.accounted.calls)
