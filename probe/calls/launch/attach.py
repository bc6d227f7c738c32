"""Waits, in a process below `dashboard run`, for the first optimizer or the first loss that is sent back.

Begun by `site/sitecustomize.py` once torch is imported. Until then two functions of torch are replaced, and
the rest of the probe is not even imported: a data loader's worker never gets further.
"""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import Optimizer

from ...delivery.stderr import say
from ...guard import outcome_of
from .alias import share_loaded_probe
from .speech import redirect_log

if TYPE_CHECKING:
    from .attacher import Attacher


_NOTHING = (
    "nothing is recorded: no module was seen to be trained. What shows one: loss.backward(), or "
    "torch.autograd.grad(loss, list(model.parameters())), after a call of the model"
)


def begin() -> None:
    """Wait for the first optimizer of this process."""
    share_loaded_probe(__name__.partition(".calls.launch")[0])
    _Waiting().install()


class _Waiting:
    """Makes the `Attacher` when it is needed."""

    def __init__(self) -> None:
        self._attacher: Attacher | None = None
        self._has_failed = False
        self._takes_gradients = False
        """Whether the script was seen to."""

    def install(self) -> None:
        """Notice optimizers that are made, and losses that are sent back without one."""
        self._replace_new()
        self._replace_backward()
        self._replace_grad()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self._tell_of_nothing, os.getpid())

    def _get_attacher(self) -> Attacher | None:
        if self._attacher is None and not self._has_failed:
            # The script must run whatever is wrong with the probe; there is no logging of ours yet.
            made, error = outcome_of(_new_attacher)
            if error is not None:
                self._has_failed = True
                say(f"this script is not recorded: {error}")
            # Threads that come here at the same time, while modules are imported, get the same one.
            self._attacher = self.__dict__.setdefault("_first_attacher", made)
        return self._attacher

    def _tell_of_nothing(self, pid: int) -> None:
        """At the end of a script that has taken gradients, and trained no module that could be recorded."""
        if self._takes_gradients and os.getpid() == pid and not self._has_failed:
            attacher = self._get_attacher()
            if attacher is not None:
                attacher.say_if_nothing_was_found(_NOTHING)

    def _forget(self) -> None:
        if self._attacher is not None:
            self._attacher.forget()

    def _replace_new(self) -> None:
        original = Optimizer.__new__

        def make(cls: type[Optimizer], *args: Any, **kwargs: Any) -> Optimizer:
            made: Optimizer = object.__new__(cls) if original is object.__new__ else original(cls)
            if (attacher := self._get_attacher()) is not None:
                attacher.note_optimizer(made)
            return made

        # Unlike a wrapper of `__init__`, this is on no stack when the arguments turn out to be wrong.
        setattr(Optimizer, "__new__", staticmethod(make))  # noqa: B010 - mypy refuses the plain form

    def _replace_backward(self) -> None:
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or (attacher := self._get_attacher()) is None:
                return original(tensors, *args, **kwargs)
            self._takes_gradients = True
            if attacher.before_backward(tensors):
                return torch.autograd.backward(tensors, *args, **kwargs)
            return original(tensors, *args, **kwargs)

        backward.__doc__, backward.__module__ = original.__doc__, original.__module__
        backward.__qualname__ = original.__qualname__
        torch.autograd.backward = backward

    def _replace_grad(self) -> None:
        original = torch.autograd.grad

        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(outputs, inputs, *args, **kwargs)
            self._takes_gradients = True
            if not _asks_for_parameters(inputs, args, kwargs):
                return original(outputs, inputs, *args, **kwargs)
            if (attacher := self._get_attacher()) is not None and attacher.before_backward(outputs):
                return torch.autograd.grad(outputs, inputs, *args, **kwargs)
            return original(outputs, inputs, *args, **kwargs)

        grad.__doc__, grad.__module__ = original.__doc__, original.__module__
        grad.__qualname__ = original.__qualname__
        grad.__wrapped__ = original  # type: ignore[attr-defined]
        torch.autograd.grad = grad


def _asks_for_parameters(inputs: Any, args: Any, kwargs: Any) -> bool:
    """Whether `torch.autograd.grad` is asked for gradients that an update may be made of by hand."""
    creates_graph = args[2] if len(args) > 2 else kwargs.get("create_graph", False)
    given = inputs if isinstance(inputs, list | tuple) else (inputs,)
    return not creates_graph and any(isinstance(item, torch.nn.Parameter) for item in given)


def _new_attacher() -> Attacher:
    # Only now: most processes never get here, and need not load the probe.
    from .attacher import Attacher
    from .sessions import Launch

    launch = Launch.from_environment()
    redirect_log(is_quiet=launch.is_quiet)
    return Attacher(launch)
