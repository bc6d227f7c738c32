"""Tells of every optimizer's `step`, by one pair of torch's global optimizer hooks.

An `Attachment` of `hooks.py` wants those that update the watched model, closures and nesting undone; calls
that look at single steps want all. On the thread of the step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from ..compat.weak_tables import WeakTable
from ..threads.unnoticed import is_replaying
from .armed_calls import armed_calls


class StepListener(Protocol):
    """What `listen_to_steps` tells of every optimizer's `step` in this process, on the thread of the step."""

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """A step begins; returns what it is to be called with instead, or None."""
        ...

    def after(self, optimizer: Optimizer) -> None:
        """It has ended."""
        ...


class UpdateListener(Protocol):
    """What is told of the steps of the optimizers that it owns; no method may raise but by intention."""

    def owns(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer updates the watched model."""
        ...

    def before_closure(self, optimizer: Optimizer) -> None:
        """A step begins that will evaluate a closure before its update."""
        ...

    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients are final and the update has not been made."""
        ...

    def after_step(self, optimizer: Optimizer) -> None:
        """The update has been made."""
        ...


def listen_to_steps(listener: StepListener) -> Callable[[], None]:
    """Tell `listener` of every optimizer's step, of other threads too; returns what ends that, idempotent."""
    _step_hooks.add(listener)
    return lambda: _step_hooks.remove(listener)


def join_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Have a listener that came after a step had begun follow it; return what it is to be called with."""
    return _step_hooks.before(optimizer, args, kwargs) or (args, kwargs)


class OptimizerSteps:
    """Listens to the outermost `step` of the optimizers that the listener owns.

    `step` calls nest (`super().step()`, SAM). With a closure the pre-hook comes before forward and backward,
    so the closure is wrapped and the listener told when it returns.
    """

    _listener: UpdateListener

    def __init__(self) -> None:
        self._owned: WeakTable[Optimizer, bool] = WeakTable()
        self._open: list[weakref.ref[Optimizer]] = []
        self._in_closure = False
        self.in_trial = False
        self.foreign = 0

    def install(self, listener: UpdateListener) -> None:
        """Tell `listener` from now on."""
        self._listener = listener
        _step_hooks.add(self)

    @property
    def owners(self) -> int:
        """How many optimizers the listener owns."""
        return sum(self._owned.values())

    def remove(self) -> None:
        """Tell no more. Idempotent."""
        _step_hooks.remove(self)

    def settle(self) -> None:
        """Forget open steps, unless a closure is what runs now."""
        if not self._in_closure:
            self._open.clear()

    def _owns(self, optimizer: Optimizer) -> bool:
        owned = self._owned.get(optimizer)
        if owned is None:
            owned = self._owned[optimizer] = self._listener.owns(optimizer)
        return owned

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """A step begins; what it is to be called with instead."""
        if is_replaying():
            return None
        if not self._owns(optimizer):
            self.foreign += 1
            return None
        self._open.append(weakref.ref(optimizer))
        if len(self._open) > 1:
            return None
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 and callable(args[1]) else None)
        if closure is None:
            self._listener.before_step(optimizer)
            return None
        self._listener.before_closure(optimizer)
        wrapped = self._wrap_closure(closure, optimizer)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (args[0], wrapped, *args[2:]), kwargs

    def _wrap_closure(self, closure: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
        evaluated = False

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            nonlocal evaluated
            # Line searches evaluate again at trial points; the step's own gradient is the first one.
            self._in_closure, self.in_trial = True, evaluated
            try:
                result = closure(*args, **kwargs)
            finally:
                self._in_closure = self.in_trial = False
            if not evaluated:
                evaluated = True
                self._listener.before_step(optimizer)
            return result

        return evaluate

    def after(self, optimizer: Optimizer) -> None:
        """It has ended."""
        if is_replaying() or not self._owns(optimizer):
            return
        if self._open:
            self._open.pop()
        if not self._open:
            self._listener.after_step(optimizer)


class _StepHooks:
    """One pair of torch's global optimizer hooks for all listeners.

    torch goes through its table of hooks while a step begins and ends. One that changed meanwhile, because a
    session or a call ends on another thread, would raise in the user's `step`: as long as another thread that
    has made steps lives, the hooks stay, and find nobody to tell.
    """

    def __init__(self) -> None:
        self._listening: tuple[StepListener, ...] = ()
        self._handles: list[RemovableHandle] = []
        self._stepping: set[int] = set()
        self._lock = threading.RLock()

    def add(self, steps: StepListener) -> None:
        with self._lock:
            self._listening = (*self._listening, steps)
            if not self._handles:
                self._handles = [
                    register_optimizer_step_pre_hook(self.before),
                    register_optimizer_step_post_hook(self._after),
                ]

    def remove(self, steps: StepListener) -> None:
        with self._lock:
            self._listening = tuple(other for other in self._listening if other is not steps)
            others = self._stepping - {threading.get_ident()}
            if self._listening or any(thread.ident in others for thread in threading.enumerate()):
                return
            self._stepping.clear()
            while self._handles:
                self._handles.pop().remove()

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """A step begins; what it is to be called with instead."""
        # Who listens is not to be part of what was compiled: it would be compiled anew for each call. Asked
        # as cheaply as can be: a step at level off has nothing but this.
        if is_dynamo_compiling():
            return None
        ask = armed_calls.before_step
        is_followed = ask is not None and ask(optimizer, args, kwargs)
        if (is_followed and len(self._listening) == 1) or torch.compiler.is_compiling():
            return None
        self._stepping.add(threading.get_ident())
        changed: tuple[Any, Any] | None = None
        for steps in self._listening:
            if is_followed and isinstance(steps, OptimizerSteps):
                continue
            changed = steps.before(optimizer, args, kwargs) or changed
            if changed is not None:
                args, kwargs = changed
        return changed

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():
            return
        ask = armed_calls.after_step
        is_followed = ask is not None and ask(optimizer)
        if (is_followed and len(self._listening) == 1) or torch.compiler.is_compiling():
            return
        for steps in self._listening:
            if not (is_followed and isinstance(steps, OptimizerSteps)):
                steps.after(optimizer)


_step_hooks = _StepHooks()
