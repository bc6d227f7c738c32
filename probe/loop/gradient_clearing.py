"""Whether a script clears the gradients between two updates, read off a single `.grad` of each optimizer.

Called on the training thread around every backward and after every update. In a healthy loop that is one
attribute: the gradient is None when backward begins. No device is waited for unless something is wrong.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from ..attach.watched_model import WatchedModel

_UPDATES: Final = 100
_WITHOUT_UPDATE: Final = 300
"""Backwards in a row without an update: more than are accumulated, the script leaves its updates out."""
SUSPICIOUS: Final = 2
"""Updates in a row without clearing after which a gradient on a device is read, which waits for it."""


class UpdateListener(Protocol):
    """What is called at updates: the detector."""

    def note(self, step: int, *, cleared: bool | None, subject: str) -> None:
        """Account for one update; `subject` is a parameter whose gradient was not cleared."""
        ...


class ClearingWatch:
    """Watches every optimizer of a training loop: each is to clear what it updates.

    Args:
        model: whose parameters are updated.
        detector: is told of every update.
    """

    def __init__(self, model: WatchedModel, detector: UpdateListener) -> None:
        self._model, self._detector = model, detector
        self._watches: dict[weakref.ref[Optimizer], GradientClearing] = {}
        self._updates = self._backwards = 0

    @property
    def is_over(self) -> bool:
        """Whether enough was seen: a script clears its gradients, or it does not, or makes no updates."""
        return self._updates >= _UPDATES or self._backwards >= _WITHOUT_UPDATE

    def before_backward(self) -> None:
        """Any backward begins."""
        for watch in self._watches.values():
            watch.before_backward()

    def after_backward(self) -> None:
        """It has ended."""
        self._backwards += 1
        for watch in self._watches.values():
            watch.after_backward()

    def after_step(self, optimizer: Optimizer, step: int | None) -> None:
        """An optimizer has updated at a finished step; None before the first."""
        self._updates += 1
        self._backwards = 0
        reference = weakref.ref(optimizer)
        watch = self._watches.get(reference)
        if watch is None:
            alive = {known: of for known, of in self._watches.items() if known() is not None}
            watch = GradientClearing()
            self._watches = {**alive, reference: watch}
        cleared = watch.after_step(_parameters(optimizer))
        if cleared is None or step is None:
            return
        subject = "" if cleared else self._name_of(watch.parameter)
        self._detector.note(step, cleared=cleared, subject=subject)

    def _name_of(self, parameter: Tensor | None) -> str:
        return next((name for name, known in self._model.parameters.items() if known is parameter), "")


class GradientClearing:
    """Watches one parameter of one optimizer.

    `zero_grad` and its like leave None, another tensor or another version behind. `p.grad.data.zero_()`
    leaves none of these, so that the values are looked at before anything is claimed. What changes between a
    backward and the update (clipping, unscaling) is not looked at.
    """

    def __init__(self) -> None:
        self._parameter: weakref.ref[Tensor] | None = None
        self._grad: weakref.ref[Tensor] | None = None
        self._version = -1
        self._was_cleared = self._had_backward = False
        self._uncleared = 0

    @property
    def parameter(self) -> Tensor | None:
        """The parameter that is watched; None before the first update."""
        return None if self._parameter is None else self._parameter()

    def before_backward(self) -> None:
        """A backward begins: were the gradients cleared since the last one, or the update?"""
        parameter = self.parameter
        if parameter is None or self._was_cleared:
            return
        grad = parameter.grad
        known = None if self._grad is None else self._grad()
        if grad is None or grad is not known or grad._version != self._version:
            self._was_cleared = True
        elif grad.device.type == "cpu" or self._uncleared >= SUSPICIOUS:
            self._was_cleared = not bool(grad.detach().any())

    def after_backward(self) -> None:
        """It has ended, and may have added to the gradients."""
        if self._parameter is not None:
            self._had_backward = True
            self._note()

    def after_step(self, parameters: Iterable[Tensor]) -> bool | None:
        """The optimizer has updated `parameters`.

        Returns:
            Whether their gradients had been cleared since its update before; None when that is not known.
        """
        parameter = self.parameter
        verdict = self._was_cleared if parameter is not None and self._had_backward else None
        self._uncleared = self._uncleared + 1 if verdict is False else 0
        self._was_cleared = self._had_backward = False
        if parameter is None or parameter.grad is None:
            self._choose(parameters)
        self._note()
        return verdict

    def _choose(self, parameters: Iterable[Tensor]) -> None:
        """Watch the smallest parameter that has a dense gradient."""
        found = [
            parameter
            for parameter in parameters
            if parameter.grad is not None and parameter.grad.layout is torch.strided and parameter.numel()
        ]
        self._parameter = weakref.ref(min(found, key=Tensor.numel)) if found else None

    def _note(self) -> None:
        parameter = self.parameter
        grad = None if parameter is None else parameter.grad
        self._grad = None if grad is None else weakref.ref(grad)
        self._version = -1 if grad is None else grad._version


def _parameters(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
