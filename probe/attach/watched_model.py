"""The model that a session watches: its parameters and their layout, what measures them, who updates them.

Used by the loop and its pipeline, on the training thread. Holds the parameters; the model itself only weakly.
"""

from __future__ import annotations

import dataclasses
import logging
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..compat import all_objects, torch_nodes, torch_ranks
from ..compat.weak_tables import WeakTable
from ..detectors.layers import in_words, topmost_modules
from ..measure.statistics.statistics import (
    Floats,
    PendingStatistics,
    TensorStatistics,
    plan_measurement,
    tensor_norms,
    tensor_statistics,
)
from ..wire import Layout, ModuleInfo
from .layout import ModelLayout, describe_model
from .unseen_updates import MarkedParameter, State, UnseenUpdates

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
        self.has_stray_optimizer = False
        """Whether the optimizer that was given held none of the trainable parameters then."""
        # Arrays: 8 bytes for an identity, where a set takes 100.
        self._updated_ids = array("q", map(id, layout.parameters))
        if optimizer is not None:
            updated = _updated_by(optimizer)
            self._updated_ids = array("q", updated)
            self.has_stray_optimizer = updated.isdisjoint(map(id, layout.parameters))
            if self.has_stray_optimizer:
                _logger.warning("nanscope: %s", _describe_stray(root, layout, optimizer))
        self._has_optimizer: bool | None = True if optimizer is not None else None
        self._keys: WeakTable[Optimizer, int] = WeakTable()
        self._with_key: list[tuple[array[int], int]] = []
        """Identities of parameters that an optimizer updates, and its number."""
        self._modules: Sequence[ModuleInfo] = ()
        self._held: WeakTable[Optimizer, int] = WeakTable()
        self._frozen: list[nn.Parameter] = []
        self._updates = UnseenUpdates()
        self._unseen_updates = 0
        self._has_reported = False
        self.is_reduced = False
        """Whether DistributedDataParallel averages the gradients of the newest forward over the ranks."""
        self.keeps_own_gradients = False
        """Whether it does so in copies, and `p.grad` is this rank's own until the backward's end."""
        self.is_sharded = False
        """Whether this rank holds only its own part of some parameters (FSDP2, tensor parallel)."""
        self._shares: Floats | None = None
        self._unknown: TensorStatistics | None = None
        self._note_sharding()

    @property
    def root(self) -> nn.Module:
        """The naming root; an empty module once it is gone."""
        root = self._root()
        return nn.Module() if root is None else root

    # -- optimizers

    def is_updated_by(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer updates a watched parameter, or one that the model has got since."""
        updated = _updated_by(optimizer)
        # As a rule there is none: to name a model's parameters takes 5 ms where it has 2,500 modules.
        unknown = updated.difference(map(id, self.layout.parameters))
        if unknown and not unknown.isdisjoint(map(id, self._parameters_now())):
            self._next_look = 0
            return True
        return not updated.isdisjoint(self._updated_ids)

    def is_cleared_by(self, owner: nn.Module | Optimizer) -> bool:
        """Whether `owner.zero_grad` drops the gradients: all of a module's, or those of an optimizer."""
        if isinstance(owner, Optimizer):
            return self.is_updated_by(owner)
        return owner is self._root() or set(map(id, self.layout.parameters)) <= set(
            map(id, owner.parameters())
        )

    def _parameters_now(self) -> Iterable[nn.Parameter]:
        root = self._root()
        return () if root is None else root.parameters()

    def note_step_of(self, optimizer: Optimizer) -> int:
        """An owned optimizer steps; return the number that it shares with those of the same parameters."""
        self._has_optimizer = self._has_reported = True
        self._unseen_updates = 0
        self._updates.forget()
        self._notice_thawing(optimizer)
        key = self._keys.get(optimizer)
        if key is None:
            updated = _updated_by(optimizer)
            ids = array("q", sorted(updated))
            shared = (key for other, key in self._with_key if not updated.isdisjoint(other))
            key = self._keys[optimizer] = next(shared, len(self._with_key) + 1)
            if (ids, key) not in self._with_key:
                # Where an optimizer is made anew for each step, they are the same every time.
                self._with_key.append((ids, key))
        return key

    def _notice_thawing(self, optimizer: Optimizer) -> None:
        """Look for new rows at once when an optimizer got parameters, or what it holds was unfrozen."""
        held = sum(len(group["params"]) for group in getattr(optimizer, "param_groups", ()))
        if self._held.get(optimizer) != held:
            self._held[optimizer] = held
            groups = getattr(optimizer, "param_groups", ())
            frozen = [p for group in groups for p in group["params"] if not p.requires_grad]
            inside = frozenset(map(id, self._parameters_now())) if frozen else frozenset()
            self._frozen = [parameter for parameter in frozen if id(parameter) in inside]
            self.is_updated_by(optimizer)
        elif any(parameter.requires_grad for parameter in self._frozen):
            self._frozen = [parameter for parameter in self._frozen if not parameter.requires_grad]
            self._next_look = 0

    def find_optimizer(self) -> bool:
        """Whether an optimizer updates the model; looks once at all objects for one that has yet to step.

        While they cannot be looked at there is taken to be one.
        """
        if self._has_optimizer is None:
            optimizers = all_objects.training.instances(Optimizer)
            if optimizers is None:
                return True
            self._has_optimizer = any(self.is_updated_by(optimizer) for optimizer in optimizers)
        return self._has_optimizer

    # -- updates that no hook tells of

    @property
    def tells_of_updates(self) -> bool:
        """Whether the optimizer's hooks are known to tell of the updates."""
        return self._has_reported and self._unseen_updates < 2

    def note_backward(self) -> None:
        """Remember what a few of the parameters are after a backward, to see whether they are updated."""
        self._updates.note(self.layout.parameters, has_hooks=self.tells_of_updates)

    def has_any(self, tensors: Sequence[object]) -> bool:
        """Whether a watched parameter is among them."""
        return not set(map(id, tensors)).isdisjoint(map(id, self.layout.parameters))

    def note_gradients_given(self, tensors: Sequence[object]) -> None:
        """Remember what a few of the parameters are whose gradients `torch.autograd.grad` has returned."""
        given = set(map(id, tensors))
        self._updates.note_some([item for item in self.layout.parameters if id(item) in given])

    def marked_parameter(self) -> MarkedParameter | None:
        """Return the parameter that tells of unseen updates as long as hooks tell of the others."""
        return self._updates.marked(self.layout.parameters)

    def adopt_mark(self, mark: MarkedParameter, state: State) -> None:
        """As `note_backward`, where C has remembered what the parameter was."""
        self._updates.adopt(mark, state)

    def was_updated_unseen(self) -> bool:
        """Whether parameters were changed since `note_backward`, and no hook has told of it."""
        return self._updates.were_made()

    def takes_unseen_update_for_a_step(self) -> bool:
        """An unseen update was found: say whether it ends a step.

        Once may be the first of two passes (sharpness-aware minimisation), whose second one is made by an
        optimizer that tells; twice in a row is an optimizer that never will.
        """
        self._updates.forget()
        self._unseen_updates += 1
        if self._unseen_updates == 2 and self._has_optimizer is not False:
            _logger.warning(
                "nanscope: the parameters are updated, but no optimizer hook tells of it (a compiled "
                "optimizer.step, say): a step ends at the next forward or backward, and its gradients are "
                "those right after its last backward"
            )
        return not self.tells_of_updates

    # -- other ranks

    def note_forward(self, root: nn.Module) -> None:
        """A forward of the root begins; see whether its backward will average gradients over the ranks."""
        if not torch_ranks.is_distributed():
            self.is_reduced = self.keeps_own_gradients = False
            return
        wrapper = torch_ranks.data_parallel_around(root)
        self.is_reduced = wrapper is not None and bool(wrapper.require_backward_grad_sync)
        self.keeps_own_gradients = wrapper is not None and torch_ranks.keeps_own_gradients(wrapper)

    @property
    def no_replay_reason(self) -> str | None:
        """Why no step of this model can be replayed, if so."""
        if not self.is_sharded:
            return None
        return "the parameters are sharded over several ranks, which would all have to replay at once"

    def _note_sharding(self) -> None:
        self._shares = None
        if self.is_sharded or not self.layout.record.sharded_over:
            return
        self.is_sharded = True
        _logger.warning(
            "nanscope: the parameters are sharded over several ranks: each rank records the gradients of its "
            "own part (stage 'shard'), and the dashboard puts the norm of the whole together. A failing step "
            "is not replayed"
        )

    def gradient_shares(self) -> Floats | None:
        """(parameters,) by what the square of each norm counts in that of the whole, summed over the ranks.

        None where nothing is sharded, where no parameter has a gradient, and where one is only a term of the
        ranks' sum.
        """
        ranks, parameters = len(self.layout.record.sharded_over), self.layout.parameters
        if not ranks or all(parameter.grad is None for parameter in parameters):
            return None
        if self._shares is not None:
            return self._shares
        shares = [torch_ranks.share_of(p if p.grad is None else p.grad, ranks) for p in parameters]
        if any(share is None for share in shares):
            return None
        found = np.array(shares, dtype=np.float64)
        if all(parameter.grad is not None for parameter in parameters):
            self._shares = found
        return found

    # -- parameters

    @property
    def is_on_cuda(self) -> bool:
        """Whether the parameters are on CUDA devices; models that are split are told by both ends."""
        parameters = self.layout.parameters
        return bool(parameters) and parameters[0].is_cuda and parameters[-1].is_cuda

    def frozen_parameters(self) -> list[nn.Parameter]:
        """Those of the model that are not watched, as long as nobody unfreezes them."""
        return [parameter for parameter in self.root.parameters() if not parameter.requires_grad]

    def is_due_for_a_look(self) -> bool:
        """Whether an optimizer was seen to update parameters that have no rows yet."""
        return self._next_look <= 0

    def note_steps(self, count: int) -> None:
        """Count steps that `follow` was not called for."""
        self._next_look -= count

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
            number = old.layout + 1
            self.layout = describe_model(root, number=number, name=old.model, also=known, member=old.member)
            self.parameters = dict(zip(self.layout.names, self.layout.parameters, strict=True))
            self._updated_ids.extend(map(id, new))
            self._modules = ()
            self._note_sharding()
            _logger.info("nanscope: the model has %d new trainable parameters, recorded from now", len(new))
        if new or not self._plan.fits(self.layout.parameters):
            self._plan = plan_measurement(self.layout.parameters)
        return self.layout.record if new else None

    def note_modules(self, modules: Sequence[ModuleInfo]) -> Layout | None:
        """Name the rows of module statistics; returns the new layout where they are others than before."""
        record = self.layout.record
        if self._modules is modules:
            return None
        self._modules = modules
        if list(modules) == record.modules:
            return None
        record = msgspec.structs.replace(record, layout=record.layout + 1, modules=list(modules))
        self.layout = dataclasses.replace(self.layout, record=record)
        return record

    def has_named(self, modules: Sequence[ModuleInfo]) -> bool:
        """Whether the newest layout names these rows; where it may not, `note_modules` has to say."""
        return self._modules is modules

    def measure_gradients(self) -> TensorStatistics:
        """Measure all gradients as they are now; waits for the device."""
        return tensor_statistics([parameter.grad for parameter in self.layout.parameters], self._plan)

    def sort_given(
        self, tensors: Sequence[object], gradients: Sequence[Tensor | None]
    ) -> dict[str, Tensor | None]:
        """Return what `torch.autograd.grad` has given for each parameter, by name."""
        given = {id(tensor): gradient for tensor, gradient in zip(tensors, gradients, strict=True)}
        return {name: given.get(id(item)) for name, item in self.parameters.items()}

    def measure_given(self, gradients: Mapping[str, Tensor | None]) -> TensorStatistics:
        """Measure gradients that `sort_given` has returned."""
        return tensor_statistics([gradients[name] for name in self.layout.names], self._plan)

    def measure_parameters(self) -> TensorStatistics:
        """Measure all parameters as they are now; waits for the device."""
        return tensor_statistics(self.layout.parameters, self._plan)

    def start_measuring_gradients(self) -> PendingStatistics:
        """Measure all gradients as they are now; waits for no CUDA device, as a rule."""
        return self._plan.start([parameter.grad for parameter in self.layout.parameters])

    def start_measuring_parameters(self) -> PendingStatistics:
        """Measure all parameters as they are now; waits for no CUDA device, as a rule."""
        return self._plan.start(self.layout.parameters)

    def rest(self) -> None:
        """Others measure from now on: let go of memory that only measuring at every step needs."""
        self._plan.release()

    def unknown_gradients(self) -> TensorStatistics:
        """Statistics that say of every parameter that its gradient is missing."""
        count = len(self.layout.parameters)
        if self._unknown is None or len(self._unknown.missing) != count:
            self._unknown = tensor_statistics([None] * count)
        return self._unknown

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
        return any(id(leaf) in ours for leaf in torch_nodes.leaves_of(list(losses)))


def _updated_by(optimizer: Optimizer) -> frozenset[int]:
    """Identities of the parameters that an optimizer updates."""
    groups = getattr(optimizer, "param_groups", ())
    return frozenset(id(parameter) for group in groups for parameter in group["params"])


def _describe_stray(root: nn.Module, layout: ModelLayout, optimizer: Optimizer) -> str:
    """Say what an optimizer holds that has none of a model's trainable parameters."""
    updated = _updated_by(optimizer)
    parameters = list(root.named_parameters())
    frozen = [not parameter.requires_grad and id(parameter) in updated for _, parameter in parameters]
    parts = list(topmost_modules([name for name, _ in parameters], np.array(frozen, dtype=np.bool_)))
    others = len(updated) - sum(frozen)
    holds = [f"{sum(frozen)} frozen ones, of {', '.join(map(in_words, parts[:4]))}"] if parts else []
    holds += [f"{others} that are not the model's"] if others or not parts else []
    return (
        f"{type(optimizer).__name__} holds 0 of {layout.record.model}'s {len(layout.parameters)} trainable "
        f"parameters; it holds {' and '.join(holds)}. Unless it updates copies of them, training cannot "
        "change the model: make it of model.parameters()"
    )


def is_surely_zero(gradient: Tensor, *, may_wait: bool) -> bool:
    """Whether a gradient is exactly 0; without `may_wait`, one on a device counts as not known to be."""
    plain = type(gradient) is Tensor and gradient.layout is torch.strided
    return plain and (may_wait or gradient.is_cpu) and not gradient.count_nonzero()
