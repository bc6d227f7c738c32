"""Looks in the first steps for modules that are frozen, held by an optimizer, and as they were initialised.

Used by the early watch on the training thread. Whatever is unfrozen for a step (the judge of a GAN) or moves
(an average of the weights) is none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from torch import nn
from torch.optim.optimizer import Optimizer

from ..attach.watched_model import WatchedModel
from ..detectors.frozen import FrozenDetector
from ..detectors.layers import topmost_modules

_FIRST: Final = 4
_STEPS: Final = 20
_ELEMENTS: Final = 1024
"""Of each parameter, that tell whether it moves."""


class FrozenModules:
    """Follows a model's first updates.

    Args:
        model: the watched one.
        detector: is told of what is found.
        optimizers: gives those that were seen to update the model.
    """

    def __init__(
        self, model: WatchedModel, detector: FrozenDetector, optimizers: Callable[[], list[Optimizer]]
    ) -> None:
        self._model, self._detector, self._optimizers = model, detector, optimizers
        self._steps = 0
        self._before: dict[str, tuple[nn.Parameter, float]] = {}
        """Frozen parameters by name, with the sum of their elements."""

    def note_update(self, step: int) -> None:
        """An update is about to be made."""
        self._steps += 1
        if self._steps == _FIRST:
            self._before = {name: (item, _sum_of_some(item)) for name, item in self._frozen()}
        elif self._before and self._steps <= _STEPS:
            self._before = {name: pair for name, pair in self._before.items() if not pair[0].requires_grad}
            if self._steps == _STEPS:
                self._judge(step)

    def _frozen(self) -> list[tuple[str, nn.Parameter]]:
        held = {
            id(parameter)
            for optimizer in self._optimizers()
            for group in getattr(optimizer, "param_groups", ())
            for parameter in group["params"]
            if not parameter.requires_grad
        }
        # Going through a large model takes milliseconds; nearly always there is nothing to find.
        named = self._model.root.named_parameters() if held else ()
        return [(name, item) for name, item in named if _is_frozen(item) and id(item) in held]

    def _judge(self, step: int) -> None:
        from ..measure.initial_values import is_as_initialised

        still = {name for name, (item, total) in self._before.items() if _sum_of_some(item) == total}
        self._before = {}
        root = self._model.root
        trained = [(name, item.requires_grad) for name, item in root.named_parameters()]
        names = tuple(name for name, _ in trained)
        chosen = np.array([name in still for name in names], dtype=np.bool_)
        modules = dict(root.named_modules())
        groups = topmost_modules(names, chosen)
        found = [name for name in groups if name in modules and is_as_initialised(modules[name])]
        if found:
            first = next((row for row, (_, is_trained) in enumerate(trained) if is_trained), len(names))
            last = max(names.index(groups[name][-1]) for name in found)
            self._detector.note(step, self._steps, found, are_first=last < first)


def _is_frozen(parameter: nn.Parameter) -> bool:
    # To read what lies on a device waits for it.
    return parameter.is_cpu and parameter.is_contiguous() and not parameter.requires_grad


def _sum_of_some(parameter: nn.Parameter) -> float:
    return float(parameter.detach().reshape(-1)[:_ELEMENTS].sum())
