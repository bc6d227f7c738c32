"""The modules below a naming root: their names and rows, and what is known of each from its type.

Read by the observer at every call of a sampled forward. Holds modules weakly.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor, nn

from ...compat.torch_modules import own_buffers, own_modules, own_parameters
from ...measure.statistics.tensor_measures import Bounds
from ...wire import ModuleInfo
from ..layout import clean_name, unwrap

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


@dataclass(frozen=True, slots=True)
class ModuleTraits:
    """What one module's row needs at every call."""

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
        parameter_bytes: of each row, the parameters and buffers that the module owns directly.
    """

    def __init__(self) -> None:
        self.infos: tuple[ModuleInfo, ...] = ()
        self.generation = 0
        self.parameter_bytes: tuple[int, ...] = ()
        self._traits: dict[int, ModuleTraits] = {}

    def refresh(self, root: nn.Module) -> bool:
        """Look at the model anew; True when rows have changed. 1 us for each module."""
        rows: dict[str, int] = {}
        types: list[str] = []
        sizes: list[int] = []
        traits: dict[int, ModuleTraits] = {}
        rules: dict[type[nn.Module], tuple[bool, int | None]] = {}
        for path, module in unwrap(root).named_modules():
            name = clean_name(path)
            row = rows.setdefault(name, len(rows))
            if row == len(types):
                types.append(type(module).__name__)
                sizes.append(0)
            else:
                # Of a wrapper and what it wraps, the inner one comes later and is the one with a meaning.
                types[row] = type(module).__name__
            sizes[row] += _own_bytes(module)
            kind = type(module)
            if kind not in rules:
                rules[kind] = issubclass(kind, _WITH_BOUNDS), unit_rule(kind)
            traits[id(module)] = ModuleTraits(row, _is_wrapper(module), weakref.ref(module), *rules[kind])
        infos = tuple(ModuleInfo(name=name, type=types[row]) for name, row in rows.items())
        has_changed = infos != self.infos
        self.infos, self._traits, self.parameter_bytes = infos, traits, tuple(sizes)
        self.generation += has_changed
        return has_changed

    def find(self, module: nn.Module) -> ModuleTraits | None:
        """Return the traits of a module, None for one that was not below the root when last looked."""
        traits = self._traits.get(id(module))
        # The identity of a module that is gone may be another's by now.
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
    return any(not clean_name(name) for name in own_modules(module))
