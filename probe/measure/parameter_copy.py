"""A copy of parameters from just before an update, in buffers that are used again and again.

Used by the update meter, on the training thread. Waits for no device; takes at most a set amount of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

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


class ParameterCopy(msgspec.Struct, kw_only=True):
    """One flat buffer for each device and type, cut into views of the parameters' shapes."""

    parameters: Sequence[Tensor]
    index_of: dict[int, int]
    """By identity."""
    signatures: list[_Signature]
    views: dict[int, Tensor]
    """By the parameter's index; some have none."""
    kind_of: dict[int, Kind]
    bytes_held: int
    reason: str | None
    """Why some parameters have no place in it; None when all have."""

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
        views: dict[int, Tensor] = {}
        for kind, indices in chosen.items():
            views |= _reserve({index: tensors[index] for index in sorted(indices)}, kind)
        return cls(
            parameters=parameters,
            index_of={id(parameter): index for index, parameter in enumerate(parameters)},
            signatures=signatures,
            views=views,
            kind_of={index: kind for kind, indices in chosen.items() for index in indices},
            bytes_held=sum(sizes[index] for index in views),
            reason=_why_left_out(len(wanted) - len(views), len(wanted), limit_bytes),
        )

    def find(self, parameters: Sequence[Tensor], updated: Collection[int] | None) -> list[int] | None:
        """Return the indices of those updated; None when the copy is of other parameters, or they changed."""
        if parameters is not self.parameters:
            # Dictionaries keep their order.
            if list(map(id, parameters)) != list(self.index_of):
                return None
            self.parameters = parameters
        indices = self.indices_of(updated)
        return indices if len(self.unchanged(indices)) == len(indices) else None

    def indices_of(self, updated: Collection[int] | None) -> list[int]:
        """Return the indices of those updated, None for all; a copy just made need not be compared."""
        if updated is None:
            return list(range(len(self.parameters)))
        return sorted(self.index_of[key] for key in updated if key in self.index_of)

    def unchanged(self, indices: list[int]) -> list[int]:
        """Those of them that have the device, type and shape that they had."""
        return [index for index in indices if _signature(self.parameters[index]) == self.signatures[index]]

    def take(self, indices: list[int]) -> list[int]:
        """Copy these parameters' values; returns those that have a place."""
        placed = [index for index in indices if index in self.views]
        with torch.no_grad():
            for chosen in self.by_kind(placed):
                new = [local_shard(self.parameters[index]) for index in chosen]
                foreach_copy_([self.views[index] for index in chosen], new)
        return placed

    def by_kind(self, indices: list[int]) -> list[list[int]]:
        """Group indices by device and type."""
        groups: dict[Kind, list[int]] = {}
        for index in indices:
            groups.setdefault(self.kind_of[index], []).append(index)
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


def _reserve(tensors: dict[int, Tensor], kind: Kind) -> dict[int, Tensor]:
    device, dtype = kind
    sizes = [tensor.numel() for tensor in tensors.values()]
    parts = torch.split(torch.empty(sum(sizes), dtype=dtype, device=device), sizes)
    # A vector's part has its shape already: each view is one more tensor, of thousands in the first step.
    return {
        index: part if tensors[index].dim() == 1 else part.view(tensors[index].shape)
        for index, part in zip(tensors, parts, strict=True)
    }


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
