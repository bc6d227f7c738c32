"""Leaves one update of an optimizer out: afterwards all is as if its `step` had not been called.

There is no way to stop a `step` from its pre-hook, so it runs and finds nothing to do. torch's own optimizers
pass over parameters without a gradient. Of others nothing is known: they run with gradients of zero, and what
they may have changed is put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from .kept_state import Restore, keep_optimizer


class SkippedUpdate:
    """One update that is under way and is not to be made. `end` undoes whatever it did; idempotent.

    Args:
        optimizer: whose `step` has begun, and has not written yet.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._gradients: list[tuple[Tensor, Tensor]] = []
        self._restores: list[Restore] = []
        passes_over = passes_over_missing_gradients(optimizer)
        if not passes_over:
            self._restores = [keep_optimizer(one) for one in _with_inner(optimizer, set())]
        try:
            self._take_gradients(optimizer, passes_over=passes_over)
        except BaseException:
            # Memory is short, say. Half of the gradients would be a step that nobody has asked for.
            self.end()
            raise

    def _take_gradients(self, optimizer: Optimizer, *, passes_over: bool) -> None:
        for parameter in parameters_of(optimizer):
            gradient = parameter.grad
            if gradient is not None:
                self._gradients.append((parameter, gradient))
                parameter.grad = None if passes_over else torch.zeros_like(gradient)

    def end(self) -> None:
        """The step has returned, or raised: put back what it was not to change, and the gradients."""
        restores, gradients = self._restores, self._gradients
        self._restores, self._gradients = [], []
        try:
            with torch.no_grad():
                for restore in restores:
                    restore()
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient


def passes_over_missing_gradients(optimizer: Optimizer) -> bool:
    """Whether a step without gradients is known to change nothing at all.

    LBFGS counts its evaluations even so.
    """
    kind = type(optimizer)
    return f"{kind.__module__}.".startswith("torch.optim.") and kind is not torch.optim.LBFGS


def was_moved(optimizer: Optimizer, before: Mapping[int, object], now: Mapping[int, object]) -> bool:
    """Whether a step of an unknown optimizer wrote to its parameters before it evaluated its closure.

    Sharpness-aware minimisation does. What is there now is then not what was there before the step.
    """
    return not passes_over_missing_gradients(optimizer) and before != now


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yield every parameter of an optimizer's groups."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _with_inner(optimizer: Optimizer, seen: set[int]) -> Iterator[Optimizer]:
    """The optimizer and those that it holds and steps in turn (SAM, Lookahead, ZeRO)."""
    if id(optimizer) in seen:
        return
    seen.add(id(optimizer))
    yield optimizer
    for value in list(vars(optimizer).values()):
        if isinstance(value, Optimizer):
            yield from _with_inner(value, seen)
