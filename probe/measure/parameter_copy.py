"""A copy of parameters from just before an update, in buffers that are used again and again.

Used by the update meter, on the training thread. Waits for no device; takes at most a set amount of memory.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from ..compat.torch_foreach import foreach_copy_
from ..compat.torch_memory import local_shard

_FREE_SHARE: Final = 0.1
"""Of what is free on a CUDA device the copy takes at most this."""
_PLAIN: Final = frozenset({Tensor, Parameter})

Kind: TypeAlias = tuple[torch.device, torch.dtype]
_Signature: TypeAlias = tuple[torch.device, torch.dtype, torch.Size] | None


class _Flat(NamedTuple):
    """One buffer, and whose values lie in it, in their order."""

    buffer: Tensor
    indices: list[int]


class ParameterCopy(msgspec.Struct, kw_only=True):
    """One flat buffer for each device and type, cut into views of the parameters' shapes."""

    parameters: Sequence[Tensor]
    ids: array[int]
    """Identities of the parameters."""
    signatures: list[_Signature]
    flats: dict[Kind, _Flat]
    bytes_held: int
    reason: str | None
    """Why some parameters have no place in it; None when all have."""
    cut: dict[int, Tensor] = {}
    """The views that there are now: all, or none."""

    @classmethod
    def of(cls, parameters: Sequence[Tensor], limit_bytes: int) -> ParameterCopy:
        """Reserve buffers for as many parameters as fit into the limit of each device, smallest first."""
        # Equal ones are kept once: thousands of tuples more would call the garbage collector.
        kept: dict[_Signature, _Signature] = {}
        signatures = [kept.setdefault(own, own) for own in map(_signature, parameters)]
        wanted = [index for index, parameter in enumerate(parameters) if _is_comparable(parameter)]
        tensors = {index: local_shard(parameters[index]) for index in wanted}
        sizes = {index: tensor.numel() * tensor.element_size() for index, tensor in tensors.items()}
        left: dict[torch.device, int] = {}
        chosen: dict[Kind, list[int]] = {}
        for index in sorted(wanted, key=lambda index: sizes[index]):
            device = tensors[index].device
            if device not in left:
                left[device] = min(limit_bytes, _spare_bytes(device))
            if sizes[index] <= left[device]:
                left[device] -= sizes[index]
                chosen.setdefault((device, tensors[index].dtype), []).append(index)
        flats = {
            kind: _Flat(_reserve([tensors[index] for index in indices], kind), indices)
            for kind, indices in ((kind, sorted(indices)) for kind, indices in chosen.items())
        }
        placed = [index for flat in flats.values() for index in flat.indices]
        return cls(
            parameters=parameters,
            ids=array("q", map(id, parameters)),
            signatures=signatures,
            flats=flats,
            bytes_held=sum(sizes[index] for index in placed),
            reason=_why_left_out(len(wanted) - len(placed), len(wanted), limit_bytes),
        )

    @property
    def views(self) -> dict[int, Tensor]:
        """By the parameter's index; some have none. Those on the host are inference tensors."""
        if not self.cut:
            self.cut = {}
            for (device, _), flat in self.flats.items():
                shapes = [_shape(self.signatures[index]) for index in flat.indices]
                with torch.inference_mode(device.type == "cpu"), torch.no_grad():
                    self.cut |= zip(flat.indices, _cut(flat.buffer, shapes), strict=True)
        return self.cut

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield index, address and bytes of each parameter's place; makes no views."""
        for flat in self.flats.values():
            address, width = flat.buffer.data_ptr(), flat.buffer.element_size()
            for index in flat.indices:
                size = _shape(self.signatures[index]).numel() * width
                yield index, address, size
                address += size

    def let_go_of_views(self) -> None:
        """Keep the buffers alone, until somebody asks for views again: C code goes by addresses."""
        self.cut = {}

    def find(self, parameters: Sequence[Tensor], updated: Collection[int] | None) -> list[int] | None:
        """Return the indices of those updated; None when the copy is of other parameters, or they changed."""
        if parameters is not self.parameters:
            if array("q", map(id, parameters)) != self.ids:
                return None
            self.parameters = parameters
        indices = self.indices_of(updated)
        return indices if len(self.unchanged(indices)) == len(indices) else None

    def indices_of(self, updated: Collection[int] | None) -> list[int]:
        """Return the indices of those updated, None for all; a copy just made need not be compared."""
        if updated is None:
            return list(range(len(self.parameters)))
        return [index for index, key in enumerate(self.ids) if key in updated] if updated else []

    def unchanged(self, indices: list[int]) -> list[int]:
        """Those of them that have the device, type and shape that they had."""
        return [index for index in indices if _signature(self.parameters[index]) == self.signatures[index]]

    def take(self, indices: list[int]) -> list[int]:
        """Copy these parameters' values; returns those that have a place."""
        views = self.views
        placed = [index for index in indices if index in views]
        for chosen in self.by_kind(placed):
            old = [views[index] for index in chosen]
            with torch.no_grad():
                new = [local_shard(self.parameters[index]) for index in chosen]
            with torch.inference_mode(old[0].is_cpu), torch.no_grad():
                foreach_copy_(old, new)
        return placed

    def by_kind(self, indices: list[int]) -> list[list[int]]:
        """Group indices of those that have a place by device and type."""
        if len(self.flats) == 1:
            return [indices] if indices else []
        groups: dict[Kind, list[int]] = {}
        kinds = {index: kind for kind, flat in self.flats.items() for index in flat.indices}
        for index in indices:
            groups.setdefault(kinds[index], []).append(index)
        return list(groups.values())


def _signature(parameter: Tensor) -> _Signature:
    """What must not change between two looks at a parameter; None while it is lazy."""
    if type(parameter) not in _PLAIN:
        if is_lazy(parameter):
            return None
        parameter = local_shard(parameter)
    return parameter.device, parameter.dtype, parameter.shape


def _is_comparable(parameter: Tensor) -> bool:
    """Whether a parameter has floating or complex elements of its own in memory."""
    if is_lazy(parameter):
        return False
    values = local_shard(parameter)
    if type(values) not in _PLAIN or values.layout is not torch.strided or values.is_meta:
        return False
    return values.numel() > 0 and (values.is_floating_point() or values.is_complex())


def _reserve(tensors: list[Tensor], kind: Kind) -> Tensor:
    """Memory for the values of all of them."""
    device, dtype = kind
    size = sum(tensor.numel() for tensor in tensors)
    # An inference tensor has no history and no version: of thousands of views that is more than half.
    with torch.inference_mode(device.type == "cpu"):
        return torch.empty(size, dtype=dtype, device=device)


def _cut(buffer: Tensor, shapes: list[torch.Size]) -> list[Tensor]:
    parts = torch.split(buffer, [shape.numel() for shape in shapes])
    # A vector's part has its shape already: each view is one more tensor, of thousands in the first step.
    return [part if len(shape) == 1 else part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _shape(signature: _Signature) -> torch.Size:
    """Of a parameter that has a place."""
    return torch.Size() if signature is None else signature[2]


def _spare_bytes(device: torch.device) -> int:
    """What the copy may take of a device's free memory."""
    if device.type != "cuda":
        return sys.maxsize
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * _FREE_SHARE)


def _why_left_out(count: int, total: int, limit_bytes: int) -> str | None:
    if not count:
        return None
    return f"{count} of {total} parameters not compared: a copy may take {limit_bytes / 2**20:.3g} MiB"
