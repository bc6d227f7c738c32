"""Attaches to a training loop: the root's forward, backward, gradient clipping and the optimizer's step.

Nothing is put on a model or an optimizer: the *class* of the root gets a `__call__`; `GradScaler.scale`,
`GradScaler.step`, `torch.autograd.backward` and the clip functions are replaced, torch's global optimizer
hooks are used.
`attach` returns a handle that undoes it all. Called by the session; callbacks run on the thread that trains.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from ..compat import torch_dynamo, torch_private
from ..errors import AnomalyError
from .armed_calls import armed_calls
from .root_calls import root_calls


class Listener(Protocol):
    """What a session is told. No method may raise, except the deliberate `AnomalyError` of `mode="raise"`."""

    def owns(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer updates the watched model."""
        ...

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run `call(root, *args, **kwargs)`, the real forward, and return its result."""
        ...

    def before_evaluation(self) -> None:
        """The model, or a part of it, is about to be called with gradients disabled."""
        ...

    def before_backward(self, tensors: Any, grad_tensors: Any) -> None:
        """An outermost `torch.autograd.backward` begins."""
        ...

    def after_backward(self, tensors: Any) -> None:
        """It has returned; gradients are complete, not yet clipped or unscaled."""
        ...

    def after_scale(self, loss: Any, scaled: Any) -> None:
        """A GradScaler has made `scaled` of `loss`."""
        ...

    def after_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """`GradScaler.step` has returned; on an overflow it has not called the optimizer."""
        ...

    def before_clip(self) -> None:
        """Gradients are about to be clipped by torch's functions."""
        ...

    def after_clip(self, total_norm: Any, max_norm: Any) -> None:
        """They have been; what the function returned, and its limit where it clips by norm, else None."""
        ...

    def before_step(self, optimizer: Optimizer) -> None:
        """Gradients are final and the update has not been made."""
        ...

    def after_step(self, optimizer: Optimizer) -> None:
        """The update has been made."""
        ...


class StepListener(Protocol):
    """What `listen_to_steps` tells of every optimizer's `step` in this process, on the thread of the step."""

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """A step begins; returns what it is to be called with instead, or None."""
        ...

    def after(self, optimizer: Optimizer) -> None:
        """It has ended."""
        ...


class Attachment:
    """Everything that `attach` installed for one listener; `detach` undoes it, any number of times.

    Attributes:
        is_paused: whether only the optimizers' hooks are in place.
    """

    def __init__(self, listener: Listener, roots: Iterable[nn.Module]) -> None:
        self._listener: Listener | None = listener
        self._steps = _OptimizerSteps(listener)
        self._roots = [weakref.ref(root) for root in roots]
        self._root_keys: list[int] = []
        self.is_paused = True
        self.resume()

    @property
    def in_trial(self) -> bool:
        """Whether a line search evaluates its closure again, after the step's own gradient was seen."""
        return self._steps.in_trial

    @property
    def owners(self) -> int:
        """How many optimizers have updated the watched model."""
        return self._steps.owners

    def tell_before_closures(self, tell: Callable[[Optimizer], None]) -> None:
        """Call `tell` with an optimizer whose step begins and will evaluate a closure before its update."""
        self._steps.before_closure = tell

    @property
    def foreign_steps(self) -> int:
        """How many steps optimizers have made that do not update the watched model."""
        return self._steps.foreign

    def note_step(self) -> None:
        """Called once a step: the look at every module's calls ends when no new roots are found."""
        for key in self._root_keys:
            root_calls.note_step(key)

    def settle(self) -> None:
        """Called when a forward or backward begins: forget steps that raised before their post-hook."""
        self._steps.settle()

    def pause(self) -> None:
        """Remove all but the hooks of the optimizers, until `resume`. Idempotent."""
        if self._listener is None or self.is_paused:
            return
        self.is_paused = True
        _functions.remove(self._listener)
        while self._root_keys:
            root_calls.remove(self._root_keys.pop())

    def resume(self) -> None:
        """Put back what `pause` has removed. Idempotent."""
        listener = self._listener
        if listener is None or not self.is_paused:
            return
        self.is_paused = False
        roots = [root for reference in self._roots if (root := reference()) is not None]
        self._root_keys = [root_calls.add(root, listener, listener.before_evaluation) for root in roots]
        _functions.add(listener)

    def detach(self) -> None:
        """Remove every hook of this listener."""
        if self._listener is None:
            return
        self.pause()
        self._steps.remove()
        self._listener = None


def listen_to_steps(listener: StepListener) -> Callable[[], None]:
    """Tell `listener` of every optimizer's step, of other threads too; returns what ends that, idempotent."""
    _step_hooks.add(listener)
    return lambda: _step_hooks.remove(listener)


def attach(listener: Listener, roots: Iterable[nn.Module]) -> Attachment:
    """Tell `listener` of forwards of `roots` and of every backward, clipping and step in this process."""
    return Attachment(listener, roots)


def join_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Have a listener that came after a step had begun follow it; return what it is to be called with."""
    return _step_hooks.before(optimizer, args, kwargs) or (args, kwargs)


def is_only_listener() -> bool:
    """Whether one session, and no more, is told of what this process trains."""
    return len(_functions.listeners) == 1


class _Functions:
    """Replaces `torch.autograd.backward` and torch's clip functions while anyone listens."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._undo: list[Callable[[], None]] = []
        self._is_clipping = False
        # The garbage collector may end the session of a dropped model amid all this, on the same thread.
        self._lock = threading.RLock()

    @property
    def listeners(self) -> Sequence[Listener]:
        """Who is told."""
        return self._listeners

    def add(self, listener: Listener) -> None:
        # C follows for one session alone; the one that it followed takes its step back at its next call.
        armed_calls.disarm()
        with self._lock:
            self._listeners.append(listener)
            if not self._undo:
                self._replace(torch.autograd, "backward", self._wrap_backward)
                self._replace(torch.amp.GradScaler, "scale", self._wrap_scale)
                self._replace(torch.amp.GradScaler, "step", self._wrap_scaler_step)
                for owner, name in torch_private.clip_functions():
                    self._replace(owner, name, self._wrap_clip)

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]
            if not self._listeners:
                while self._undo:
                    self._undo.pop()()

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        wrapper = torch_dynamo.unseen_by_dynamo(wrap(original))
        setattr(owner, name, wrapper)

        def undo() -> None:
            # Someone else may have wrapped ours in the meantime: then theirs stays.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        armed = armed_calls

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            begin = armed.begin_backward
            followed = begin is not None and begin(tensors, grad_tensors)
            if followed:
                return _followed_backward(original, tensors, grad_tensors, args, kwargs)
            if followed is None:
                return original(tensors, grad_tensors, *args, **kwargs)
            # A backward inside a backward is reentrant checkpointing, not the training loop's.
            if torch_private.in_backward():
                return original(tensors, grad_tensors, *args, **kwargs)
            for listener in self._listeners:
                listener.before_backward(tensors, grad_tensors)
            result = original(tensors, grad_tensors, *args, **kwargs)
            listeners = self._listeners
            if len(listeners) == 1:
                listeners[0].after_backward(tensors)
            else:
                _tell_all(listeners, lambda listener: listener.after_backward(tensors))
            return result

        return _dressed_as(original, backward)

    def _wrap_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            ask = armed_calls.after_scale
            if ask is not None and ask(outputs, scaled):
                return scaled
            for listener in self._listeners:
                listener.after_scale(outputs, scaled)
            return scaled

        return _dressed_as(original, scale)

    def _wrap_scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(scaler, optimizer, *args, **kwargs)
            ask = armed_calls.after_scaler_step
            if ask is not None and ask(scaler, optimizer):
                return result
            _tell_all(self._listeners, lambda listener: listener.after_scaler_step(scaler, optimizer))
            return result

        return _dressed_as(original, step)

    def _wrap_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clips_by_norm = "norm" in original.__name__

        def clip(*args: Any, **kwargs: Any) -> Any:
            # torch's clip functions call each other.
            if self._is_clipping:
                return original(*args, **kwargs)
            before = armed_calls.before_clip
            is_followed = before is not None and before()
            if not is_followed:
                _tell_all(self._listeners, lambda listener: listener.before_clip())
            self._is_clipping = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._is_clipping = False
            limit = kwargs.get("max_norm", args[1] if len(args) > 1 else None) if clips_by_norm else None
            after = armed_calls.after_clip
            if is_followed and after is not None:
                after(result, limit)
                return result
            _tell_all(self._listeners, lambda listener: listener.after_clip(result, limit))
            return result

        return _dressed_as(original, clip)


class _OptimizerSteps:
    """Listens to the outermost `step` of the optimizers that the listener owns.

    `step` calls nest (`super().step()`, SAM). With a closure the pre-hook comes before forward and backward,
    so the closure is wrapped and the listener told when it returns.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._owned: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._open: list[weakref.ref[Optimizer]] = []
        self._in_closure = False
        self.in_trial = False
        self.foreign = 0
        self.before_closure: Callable[[Optimizer], None] | None = None
        _step_hooks.add(self)

    @property
    def owners(self) -> int:
        return sum(self._owned.values())

    def remove(self) -> None:
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
        if self.before_closure is not None:
            self.before_closure(optimizer)
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
        if not self._owns(optimizer):
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
        if torch.compiler.is_compiling():
            # Who listens is not to be part of what was compiled: it would be compiled anew for each call.
            return None
        ask = armed_calls.before_step
        is_followed = ask is not None and ask(optimizer, args, kwargs)
        if is_followed and len(self._listening) == 1:
            return None
        self._stepping.add(threading.get_ident())
        changed: tuple[Any, Any] | None = None
        for steps in self._listening:
            if is_followed and isinstance(steps, _OptimizerSteps):
                continue
            changed = steps.before(optimizer, args, kwargs) or changed
            if changed is not None:
                args, kwargs = changed
        return changed

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        ask = armed_calls.after_step
        is_followed = ask is not None and ask(optimizer)
        for steps in self._listening:
            if not (is_followed and isinstance(steps, _OptimizerSteps)):
                steps.after(optimizer)


def _followed_backward(
    original: Callable[..., Any], tensors: Any, grad_tensors: Any, args: Any, kwargs: Any
) -> Any:
    """Run a backward whose beginning C has followed."""
    follower = armed_calls.follower
    assert follower is not None
    try:
        result = original(tensors, grad_tensors, *args, **kwargs)
    except BaseException:
        follower.backward_raised(tensors)
        raise
    end = armed_calls.end_backward
    if end is None or not end():
        follower.backward_was_odd(tensors)
    return result


def _tell_all(listeners: Iterable[Listener], tell: Callable[[Listener], None]) -> None:
    """Tell every listener, also when one raises its `AnomalyError`; that comes last."""
    anomaly: AnomalyError | None = None
    for listener in listeners:
        try:
            tell(listener)
        except AnomalyError as error:
            anomaly = anomaly or error
    if anomaly is not None:
        raise anomaly


def _dressed_as(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Give the wrapper the name and documentation of what it stands for."""
    wrapper.__name__ = original.__name__
    wrapper.__qualname__ = original.__qualname__
    wrapper.__doc__ = original.__doc__
    wrapper.__module__ = original.__module__
    return wrapper


_functions = _Functions()
_step_hooks = _StepHooks()
