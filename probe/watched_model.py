"""The model that a session watches: its parameters and their layout, what measures them, who updates them.

Used by the step tracker alone, on the training thread. Holds the parameters; the model itself only weakly.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterable
from typing import Final

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from . import torch_private
from .layout import ModelLayout, describe_model
from .open_step import is_surely_zero
from .statistics import Floats, TensorStatistics, plan_measurement, tensor_norms, tensor_statistics
from .wire import Layout

_logger = logging.getLogger(__name__)
_LOOK_EVERY: Final = 20
"""Steps between two looks for new trainable parameters: 1.7 ms for 2,000 of them."""


class WatchedModel:
    """Parameters of one model, also when the script adds, replaces or unfreezes some.

    Args:
        root: the naming root.
        layout: of its parameters.
        optimizer: the one given to `watch`, if any: what it updates is what counts.
    """

    def __init__(self, root: nn.Module, layout: ModelLayout, optimizer: Optimizer | None) -> None:
        self.layout = layout
        self.parameters = dict(zip(layout.names, layout.parameters, strict=True))
        """By name, in layout order."""
        # The session watches over the model's life; holding it here would keep it alive for ever.
        self._root = weakref.ref(root)
        self._plan = plan_measurement(layout.parameters)
        self._next_look = _LOOK_EVERY
        self._updated_ids = frozenset(map(id, layout.parameters))
        if optimizer is not None:
            self._updated_ids = _updated_by(optimizer)
        self._has_optimizer: bool | None = True if optimizer is not None else None
        self._keys: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._key_of_parameter: dict[int, int] = {}

    @property
    def root(self) -> nn.Module:
        """The naming root; an empty module once it is gone."""
        root = self._root()
        return nn.Module() if root is None else root

    # -- optimizers

    def is_updated_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer updates a watched parameter, or one that the model has got since."""
        updated, root = _updated_by(optimizer), self._root()
        known = set(map(id, self.layout.parameters))
        added = set() if root is None else set(map(id, root.parameters())) - known
        if not updated.isdisjoint(added):
            self._next_look = 0
            return True
        return not updated.isdisjoint(self._updated_ids)

    def note_step_of(self, optimizer: Optimizer) -> int:
        """An owned optimizer steps; return the number that it shares with those of the same parameters."""
        self._has_optimizer = True
        key = self._keys.get(optimizer)
        if key is None:
            updated = _updated_by(optimizer)
            shared = (self._key_of_parameter[item] for item in updated if item in self._key_of_parameter)
            key = self._keys[optimizer] = next(shared, len(self._key_of_parameter) + 1)
            self._key_of_parameter |= dict.fromkeys(updated, key)
        return key

    @property
    def is_updated_by_hand(self) -> bool:
        """Whether it is known that no optimizer updates the model."""
        return self._has_optimizer is False

    def find_optimizer(self) -> bool:
        """Whether an optimizer updates the model; looks once at all objects for one that has yet to step."""
        if self._has_optimizer is None:
            optimizers = (item for item in gc.get_objects() if issubclass(type(item), Optimizer))
            self._has_optimizer = any(self.is_updated_by(optimizer) for optimizer in optimizers)
        return self._has_optimizer

    # -- parameters

    def is_due_for_a_look(self) -> bool:
        """Whether an optimizer was seen to update parameters that have no rows yet."""
        return self._next_look <= 0

    def follow(self) -> Layout | None:
        """Count a step; every 20th, look for new trainable parameters and return the new layout, if any."""
        self._next_look -= 1
        return self.look() if self._next_look <= 0 else None

    def look(self) -> Layout | None:
        """Give parameters that were added, replaced or unfrozen rows of their own, in a new layout."""
        self._next_look = _LOOK_EVERY
        root = self._root()
        if root is None:
            return None
        known = frozenset(map(id, self.layout.parameters))
        new = [p for p in root.parameters() if p.requires_grad and id(p) not in known]
        if new:
            old = self.layout.record
            self.layout = describe_model(root, number=old.layout + 1, name=old.model, also=known)
            self.parameters = dict(zip(self.layout.names, self.layout.parameters, strict=True))
            self._updated_ids |= set(map(id, new))
            _logger.info("nanscope: the model has %d new trainable parameters, recorded from now", len(new))
        if new or not self._plan.fits(self.layout.parameters):
            self._plan = plan_measurement(self.layout.parameters)
        return self.layout.record if new else None

    def measure_gradients(self) -> TensorStatistics:
        """Measure all gradients as they are now; waits for the device."""
        return tensor_statistics([parameter.grad for parameter in self.layout.parameters], self._plan)

    def unknown_gradients(self) -> TensorStatistics:
        """Statistics that say of every parameter that its gradient is missing."""
        return tensor_statistics([None] * len(self.layout.parameters))

    def parameter_norms(self) -> Floats:
        """Return the (parameters,) L2 norms; waits for the device."""
        return tensor_norms(self.layout.parameters, self._plan)

    def gradients_were_cleared(self, *, may_wait: bool) -> bool:
        """Whether the script dropped what its backwards gave: no update will be made of it."""
        gradients = (parameter.grad for parameter in self.layout.parameters)
        return all(gradient is None or is_surely_zero(gradient, may_wait=may_wait) for gradient in gradients)

    def is_below(self, losses: Iterable[Tensor]) -> bool:
        """Whether the graph of some loss, still alive, ends at a watched parameter."""
        ours = set(map(id, self.layout.parameters))
        return any(id(leaf) in ours for leaf in torch_private.leaves_of(list(losses)))


def _updated_by(optimizer: Optimizer) -> frozenset[int]:
    """Identities of the parameters that an optimizer updates."""
    groups = getattr(optimizer, "param_groups", ())
    return frozenset(id(parameter) for group in groups for parameter in group["params"])
