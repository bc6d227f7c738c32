"""The modules below a naming root: their names and rows, and what is known of each from its type.

Read by the observer at every call of a sampled forward. Holds modules weakly.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import msgspec
import torch
from torch import Tensor, nn

from ...compat.torch_modules import WRAPPERS, own_buffers, own_modules, own_parameters
from ...measure.statistics.tensor_measures import Bounds
from ...wire import ModuleInfo
from ..layout import modules_with_names, unwrap

_FLAT: Final = math.sqrt(0.99)
_TANH_BOUNDS: Final = (-_FLAT, _FLAT)
_SIGMOID_BOUNDS: Final = ((1 - _FLAT) / 2, (1 + _FLAT) / 2)
"""Where the derivative, 1 - y^2 or y (1 - y), is below 1 % of its maximum."""
_WITH_BOUNDS: Final = (nn.Tanh, nn.RNNBase, nn.Sigmoid, nn.Hardsigmoid, nn.Hardtanh)
_SECOND: Final = -1
_LAST_UNITS: Final = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention)
_BATCH_NORMS: Final = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.GroupNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
_CONVOLUTIONS: Final = (
    ((nn.Conv1d, nn.ConvTranspose1d), 1),
    ((nn.Conv2d, nn.ConvTranspose2d), 2),
    ((nn.Conv3d, nn.ConvTranspose3d), 3),
)


class ModuleTraits(msgspec.Struct, frozen=True, gc=False):
    """What one module's row needs at every call.

    The garbage collector need not know of it, as it is in no cycle: 2,500 more objects can have it go through
    the whole process in the first step (0.15 s).
    """

    row: int
    is_wrapper: bool
    """Whether it only wraps another module of the same name (`torch.compile`, FSDP, a checkpoint wrapper)."""
    module: weakref.ref[nn.Module]
    bounds_by_type: bool
    """Whether its type decides when an output is saturated, see `saturation_bounds`."""
    unit_rule: int | None
    """Where its units are, see `unit_rule`."""


class ModuleIndex:
    """Names and rows of all modules below a root, also when the script changes them.

    A module that is registered under several names has the first; wrappers share the row of what they wrap.

    Attributes:
        infos: name and type of each row, in `named_modules()` order; the root is ``""``.
        generation: goes up whenever `infos` changes; what is on the wire needs a new layout then.
        traits: of each module, by identity; another object when anything has changed.
    """

    def __init__(self) -> None:
        self.infos: tuple[ModuleInfo, ...] = ()
        self.generation = 0
        self.traits: Mapping[int, ModuleTraits] = {}
        self._known: tuple[list[str], list[type], list[int]] = [], [], []
        """Names, types and identities of the modules, as they were when last looked at."""

    def refresh(self, root: nn.Module) -> bool:
        """Look at the model anew; True when rows have changed. 1 us for each module, where none has."""
        found = list(modules_with_names(unwrap(root)))
        modules = [module for _, module in found]
        known = [name for name, _ in found], list(map(type, modules)), list(map(id, modules))
        # The identity of a module that is gone may be another's by now.
        if known == self._known and all(self.find(module) is not None for module in modules):
            return False
        self._known = known
        rows: dict[str, int] = {}
        # Of a wrapper and what it wraps, the inner one comes later and is the one with a meaning.
        types = {name: type(module) for name, module in found}
        rules = {kind: (issubclass(kind, _WITH_BOUNDS), unit_rule(kind)) for kind in set(known[1])}
        infos = tuple(ModuleInfo(name=name, type=kind.__name__) for name, kind in types.items())
        self.traits = {
            id(module): ModuleTraits(
                rows.setdefault(name, len(rows)),
                _is_wrapper(module),
                weakref.ref(module),
                *rules[type(module)],
            )
            for name, module in found
        }
        has_changed = infos != self.infos
        self.infos = infos
        self.generation += has_changed
        return has_changed

    def parameter_bytes(self) -> list[int]:
        """Return, for each row, the size of the parameters and buffers that the module owns directly."""
        sizes = [0] * len(self.infos)
        for traits in self.traits.values():
            if (module := traits.module()) is not None:
                sizes[traits.row] += _own_bytes(module)
        return sizes

    def find(self, module: nn.Module) -> ModuleTraits | None:
        """Return the traits of a module, None for one that was not below the root when last looked."""
        traits = self.traits.get(id(module))
        return traits if traits is not None and traits.module() is module else None

    def rows_below(self, row: int) -> Iterator[int]:
        """Yield the rows of everything inside the module of `row`."""
        prefix = self.infos[row].name
        prefix = prefix + "." if prefix else ""
        for other, info in enumerate(self.infos):
            if other != row and info.name.startswith(prefix):
                yield other


def saturation_bounds(module: nn.Module, output: Tensor) -> Bounds:
    """Return (low, high): an element of `output` at or beyond them counts as saturated.

    - `Sigmoid`, `Tanh` and the recurrent modules (whose output is one): where the activation's derivative is
      below 1 % of its maximum, that is |tanh| > 0.995, a sigmoid outside 0.0025 to 0.9975.
    - `Hardtanh`, `Hardsigmoid`, `ReLU6`: at their limits, where the derivative is 0; the zeros of a `ReLU6`
      are counted as zeros only.
    - anything else: beyond half of the largest number of the output's dtype (`torch.finfo`), the last factor
      of two before an overflow; in practice only fp16 comes near.
    """
    if not isinstance(module, _WITH_BOUNDS):
        return half_of_largest(output.dtype)
    if isinstance(module, nn.Tanh | nn.RNNBase):
        return _TANH_BOUNDS
    if isinstance(module, nn.Sigmoid):
        return _SIGMOID_BOUNDS
    if isinstance(module, nn.Hardsigmoid):
        return 0.0, 1.0
    low = float(module.min_val)
    return (-math.inf if low == 0 else low), float(module.max_val)


@cache
def half_of_largest(dtype: torch.dtype) -> tuple[float, float]:
    """The bounds of an output whose module's type says nothing else."""
    largest = torch.finfo(dtype).max / 2
    return -largest, largest


def unit_rule(kind: type[nn.Module]) -> int | None:
    """Return how many dimensions a module's output has behind its units (neurons, channels).

    0 for `Linear`, `LayerNorm`, `Embedding`, attention and recurrent modules; 1 to 3 for convolutions, whose
    channels count; `_SECOND` for batch, group and instance norms. None where the type does not decide.
    """
    if issubclass(kind, _LAST_UNITS):
        return 0
    if issubclass(kind, _BATCH_NORMS):
        return _SECOND
    return next((spatial for kinds, spatial in _CONVOLUTIONS if issubclass(kind, kinds)), None)


def unit_dimension(rule: int | None, dimensions: int) -> int:
    """Return the dimension along which the units of an output lie that has so many.

    Where the rule does not decide, as for `ReLU`, it is 1 of 4 or 5 and else the last.
    """
    if rule is None:
        return 1 if dimensions in (4, 5) else dimensions - 1
    if rule == _SECOND:
        return min(1, dimensions - 1)
    return max(dimensions - rule - 1, 0) if rule else dimensions - 1


def _own_bytes(module: nn.Module) -> int:
    tensors = [*own_parameters(module).values(), *own_buffers(module).values()]
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor) and _is_real(tensor))


def _is_real(tensor: Tensor) -> bool:
    """Whether it has a size: parameters of lazy modules have none yet."""
    return not isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer)


def _is_wrapper(module: nn.Module) -> bool:
    return not WRAPPERS.isdisjoint(own_modules(module))
