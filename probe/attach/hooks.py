"""Attaches to a training loop: the root's forward, backward, gradient clipping and the optimizer's step.

Nothing is put on a model or an optimizer: the *class* of the root gets a `__call__`; `GradScaler.scale`,
`GradScaler.step`, `torch.autograd.backward`, `torch.autograd.grad`, the clip functions and `zero_grad` are
replaced, torch's global optimizer hooks are used (`optimizer_steps.py`).
An `Attachment` installs and removes it all. Called by the session; callbacks run on the thread that trains.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from ..compat import torch_dynamo, torch_engine, torch_training
from ..errors import AnomalyError
from ..threads.unnoticed import is_replaying
from .armed_calls import armed_calls
from .optimizer_steps import OptimizerSteps, UpdateListener
from .root_calls import root_calls


class Listener(UpdateListener, Protocol):
    """What a session is told. No method may raise, except the deliberate `AnomalyError` of `mode="raise"`."""

    def call_root(self, call: Callable[..., Any], root: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run `call(root, *args, **kwargs)`, the real forward, and return its result."""
        ...

    def before_evaluation(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The model, or a part of it, is about to be called with gradients disabled.

        Args:
            call: runs it, as `call(module, *args, **kwargs)`.

        Returns:
            What is to run it instead, or `call` itself; that may raise what the user asked for.
        """
        ...

    def before_backward(self, tensors: Any, grad_tensors: Any) -> None:
        """An outermost `torch.autograd.backward` begins."""
        ...

    def after_backward(self, tensors: Any) -> None:
        """It has returned; gradients are complete, not yet clipped or unscaled."""
        ...

    def before_grad(self, outputs: Any, inputs: Any, grad_outputs: Any) -> bool:
        """An outermost `torch.autograd.grad` begins; whether `after_grad` is to be called."""
        ...

    def after_grad(self, outputs: Any, inputs: Any, gradients: Any) -> None:
        """It has returned these."""
        ...

    def note_transform(self) -> None:
        """A transform of `torch.func` asks for gradients, of whatever."""
        ...

    def after_scale(self, loss: Any, scaled: Any) -> None:
        """A GradScaler has made `scaled` of `loss`."""
        ...

    def after_scaler_step(self, scaler: Any, optimizer: Optimizer) -> None:
        """`GradScaler.step` has returned; on an overflow it has not called the optimizer."""
        ...

    def before_clearing(self, owner: nn.Module | Optimizer) -> None:
        """`owner.zero_grad` is called."""
        ...

    def before_clip(self) -> None:
        """Gradients are about to be clipped by torch's functions."""
        ...

    def after_clip(self, total_norm: Any, max_norm: Any) -> None:
        """They have been; what the function returned, and its limit where it clips by norm, else None."""
        ...


class Attachment:
    """Everything that is installed for one listener; `detach` undoes it, any number of times.

    It is made before its listener, which asks it, and installed last: nothing is told to half a session.

    Args:
        roots: whose forwards are told. Not referenced.

    Attributes:
        is_paused: whether only the optimizers' hooks are in place.
    """

    def __init__(self, roots: Iterable[nn.Module]) -> None:
        self._listener: Listener | None = None
        self._steps = OptimizerSteps()
        self._roots = [weakref.ref(root) for root in roots]
        self._root_keys: list[int] = []
        self.is_paused = True

    def install(self, listener: Listener) -> None:
        """Tell `listener` of forwards of the roots and of every backward, clipping and step from now on."""
        self._listener = listener
        self._steps.install(listener)
        self.resume()

    @property
    def in_trial(self) -> bool:
        """Whether a line search evaluates its closure again, after the step's own gradient was seen."""
        return self._steps.in_trial

    @property
    def owners(self) -> int:
        """How many optimizers have updated the watched model."""
        return self._steps.owners

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


def is_only_listener() -> bool:
    """Whether one session, and no more, is told of what this process trains."""
    return len(_functions.listeners) == 1


class _Functions:
    """Replaces functions of torch, `torch.autograd.backward` among them, while anyone listens."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._undo: list[Callable[[], None]] = []
        self._is_clipping = False
        # The garbage collector may end the session of a dropped model in between, on the same thread.
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
                self._replace(torch.autograd, "grad", self._wrap_grad)
                self._replace(torch.amp.GradScaler, "scale", self._wrap_scale)
                self._replace(torch.amp.GradScaler, "step", self._wrap_scaler_step)
                for cleared in (Optimizer, nn.Module):
                    self._replace(cleared, "zero_grad", self._wrap_clearing, dress=torch_dynamo.compiled_as)
                for owner, name in torch_training.clip_functions():
                    self._replace(owner, name, self._wrap_clip)

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners = [other for other in self._listeners if other is not listener]
            if not self._listeners:
                while self._undo:
                    self._undo.pop()()

    def _replace(
        self,
        owner: Any,
        name: str,
        wrap: Callable[[Any], Any],
        *,
        dress: Callable[[Any, Any], Any] = lambda _, wrapper: torch_dynamo.unseen_by_dynamo(wrapper),
    ) -> None:
        """Put a wrapper in place of a function.

        Args:
            owner: holds the function.
            name: of it there.
            wrap: makes the wrapper of it.
            dress: makes of both what dynamo gets along with.
        """
        original = getattr(owner, name)
        wrapper = dress(original, wrap(original))
        setattr(owner, name, wrapper)

        def undo() -> None:
            # Someone else may have wrapped ours in the meantime: then theirs stays.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)

        self._undo.append(undo)

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        armed = armed_calls

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            followed: bool | None = False
            begin = armed.begin_backward
            if begin is not None:
                # A signal's handler may raise as soon as C has been asked.
                try:
                    followed = begin(tensors, grad_tensors)
                    if followed:
                        return _followed_backward(original, tensors, grad_tensors, args, kwargs)
                except BaseException:
                    if armed.follower is not None:
                        armed.follower.backward_raised(tensors)
                    raise
            if followed is None:
                return original(tensors, grad_tensors, *args, **kwargs)
            # A backward inside a backward is reentrant checkpointing, not the training loop's.
            if torch_engine.in_backward():
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

    def _wrap_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def grad(
            outputs: Any,
            inputs: Any,
            grad_outputs: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            rest = (grad_outputs, retain_graph, create_graph, *args)
            if torch_engine.in_transform():
                for listener in self._listeners:
                    listener.note_transform()
                return original(outputs, inputs, *rest, **kwargs)
            # Of gradients that are differentiated once more no update is made by hand, but a new graph.
            if create_graph or torch_engine.in_backward():
                return original(outputs, inputs, *rest, **kwargs)
            told = [one for one in self._listeners if one.before_grad(outputs, inputs, grad_outputs)]
            result = original(outputs, inputs, *rest, **kwargs)
            if told:
                _tell_all(told, lambda listener: listener.after_grad(outputs, inputs, result))
            return result

        return _dressed_as(original, grad)

    def _wrap_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if is_replaying():
                return scaled
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
            if is_replaying():
                return result
            ask = armed_calls.after_scaler_step
            if ask is not None and ask(scaler, optimizer):
                return result
            _tell_all(self._listeners, lambda listener: listener.after_scaler_step(scaler, optimizer))
            return result

        return _dressed_as(original, step)

    def _wrap_clearing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            ask = armed_calls.before_clearing
            if not (is_replaying() or (ask is not None and ask(owner))):
                _tell_all(self._listeners, lambda listener: listener.before_clearing(owner))
            return original(owner, *args, **kwargs)

        return _dressed_as(original, zero_grad)

    def _wrap_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        clips_by_norm = "norm" in original.__name__

        def clip(*args: Any, **kwargs: Any) -> Any:
            # torch's clip functions call each other.
            if self._is_clipping or is_replaying():
                return original(*args, **kwargs)
            before = armed_calls.before_clip
            is_followed = before is not None and before()
            if is_followed is None:
                return original(*args, **kwargs)
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


def _followed_backward(
    original: Callable[..., Any], tensors: Any, grad_tensors: Any, args: Any, kwargs: Any
) -> Any:
    """Run a backward whose beginning C has followed; who calls tells the follower of what it raises."""
    result = original(tensors, grad_tensors, *args, **kwargs)
    end, follower = armed_calls.end_backward, armed_calls.follower
    if (end is None or not end()) and follower is not None:
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
    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    return wrapper


_functions = _Functions()
