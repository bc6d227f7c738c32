"""Lets a session that begins inside of an optimizer's step see that step from its beginning.

With a closure (L-BFGS, trainers that pass one) forward and backward happen inside of `step`. A session that
began there would have missed the step's beginning, and take each evaluation of the closure for a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from ...attach.optimizer_steps import join_step


class Starter(Protocol):
    """Who begins sessions."""

    def before_closure(self, optimizer: Optimizer) -> bool:
        """Begin one for what an optimizer updates; whether it has."""
        ...


class FirstClosures:
    """Asks a starter before the first closure of each step, while it is on."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._is_on = self._is_installed = False

    def begin(self) -> None:
        """Look at every optimizer's step from now on."""
        self._is_on = True
        if not self._is_installed:
            self._is_installed = True
            register_optimizer_step_pre_hook(self._before)

    def end(self) -> None:
        """Look no more. The hook stays: another thread may be going through torch's table of them."""
        self._is_on = False

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if not self._is_on or torch.compiler.is_compiling():
            return None
        closure = _closure_of(args, kwargs)
        if closure is None:
            return None
        following: Callable[..., Any] | None = None

        def evaluate(*given: Any, **named: Any) -> Any:
            # Not sooner: torch goes through its table of hooks as the step begins, and a session adds to it.
            nonlocal following
            if following is None:
                following = closure
                if self._starter.before_closure(optimizer):
                    following = _closure_of(*join_step(optimizer, args, kwargs)) or closure
            return following(*given, **named)

        if "closure" in kwargs:
            return args, {**kwargs, "closure": evaluate}
        return (args[0], evaluate, *args[2:]), kwargs


def _closure_of(args: Any, kwargs: Any) -> Callable[..., Any] | None:
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    return closure if callable(closure) else None
