"""Holds the arguments of one forward call so that it can be made again, and finds the tensors in its result.

Called by the capture on the training thread at every step, so the common cases (tensors, numbers, strings)
take a short path. Tensors are held as detached aliases: the graph behind them is free to go.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..compat import torch_lookup, torch_memory, torch_modes
from ..compat.torch_memory import is_wrapper_class, version
from ..errors import ReplayError

_ATOMS: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
    | {torch.layout, torch.memory_format, range, slice, type(Ellipsis)}
)
_BY_REFERENCE: Final = (enum.Enum, type, nn.Module, nn.Parameter, types.FunctionType, types.MethodType)
_MAX_DEPTH: Final = 6
_MAX_OUTPUTS: Final = 256


class HeldTensor:
    """A tensor argument: an alias without its history, and what is needed to tell whether it changed."""

    __slots__ = ("alias", "is_computed", "requires_grad", "version")

    def __init__(self, tensor: Tensor) -> None:
        if torch_modes.is_functorch_wrapped(tensor):
            raise ReplayError("the forward ran inside a torch.func transform")
        if type(tensor) is not Tensor and is_wrapper_class(type(tensor)):
            raise ReplayError(f"an argument is a {type(tensor).__name__}")
        self.alias = tensor.detach()
        self.requires_grad = tensor.requires_grad
        self.is_computed = tensor.requires_grad and not tensor.is_leaf
        """Whether differentiable ops made it, those of another model say: it is no data."""
        self.version = None if tensor.is_inference() else version(tensor)

    def again(self) -> Tensor:
        """Return a fresh leaf with the same memory.

        Raises:
            ReplayError: the memory was written since the call, or by it.
        """
        if torch_memory.version_of(self.alias) != self.version:
            raise ReplayError("an input was changed in place by the forward or after it")
        return self.alias.detach().requires_grad_(self.requires_grad)


class HeldArguments:
    """The arguments of one call."""

    __slots__ = ("_args", "_kwargs", "nbytes", "parts")

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Hold `args` and `kwargs`.

        Raises:
            ReplayError: an argument is of a kind that cannot be held; the message says which.
        """
        self.nbytes = 0
        self.parts: list[Tensor] = []
        """Those that show a part of some memory, and keep all of it."""
        self._args = [self._hold(value) for value in args]
        self._kwargs = {name: self._hold(value) for name, value in kwargs.items()} if kwargs else {}

    def again(self) -> tuple[list[Any], dict[str, Any], dict[str, Tensor]]:
        """Return fresh (args, kwargs, tensors by name), for one replay.

        Raises:
            ReplayError: an input was changed since.
        """
        tensors: dict[str, Tensor] = {}
        args = [_rebuild(held, f"args[{i}]", tensors) for i, held in enumerate(self._args)]
        kwargs = {name: _rebuild(held, name, tensors) for name, held in self._kwargs.items()}
        return args, kwargs, tensors

    def differ_from(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments gets other tensors; False where that cannot be told."""
        try:
            mine = self.again()[2]
            others = HeldArguments(tuple(args), kwargs).again()[2]
        except ReplayError:
            return False
        if not all(map(torch_memory.is_plain_strided, (*mine.values(), *others.values()))):
            return False
        return mine.keys() != others.keys() or any(_differ(mine[name], others[name]) for name in mine)

    def tensor(self, name: str) -> HeldTensor | None:
        """What is held of the tensor argument that `again` calls `name`."""
        found: dict[str, HeldTensor] = {}
        for i, held in enumerate(self._args):
            _collect_held(held, f"args[{i}]", found)
        for keyword, held in self._kwargs.items():
            _collect_held(held, keyword, found)
        return found.get(name)

    @property
    def plain_counts(self) -> tuple[int, int, int] | None:
        """How many positional arguments, keywords and tensors there are.

        None where one needs a gradient, or is neither a plain tensor on the CPU or CUDA nor a number or text;
        also in a container.
        """
        leaves = list(self._leaves())
        tensors = [one for one in leaves if isinstance(one, HeldTensor)]
        others = [one for one in leaves if not isinstance(one, HeldTensor)]
        if any(not _is_plain(one) for one in tensors) or any(type(one) not in _SIMPLE for one in others):
            return None
        return len(self._args), len(self._kwargs), len(tensors)

    @property
    def first_elements(self) -> int:
        """How many elements the first tensor has; 0 where there is none."""
        first = next((one for one in self._leaves() if isinstance(one, HeldTensor)), None)
        return 0 if first is None else first.alias.numel()

    def set_versions(self, versions: Sequence[int]) -> None:
        """Take the tensors for unchanged only as long as they have these versions."""
        tensors = [one for one in self._leaves() if isinstance(one, HeldTensor)]
        for held, known in zip(tensors, versions, strict=False):
            held.version = known

    def _leaves(self) -> Iterator[Any]:
        """All that is held, in order, without the containers."""
        for value in (*self._args, *self._kwargs.values()):
            if isinstance(value, _HeldContainer):
                yield from value.leaves
            else:
                yield value

    def _hold(self, value: Any) -> Any:
        if type(value) is Tensor or (isinstance(value, Tensor) and not isinstance(value, nn.Parameter)):
            held = HeldTensor(value)
            if value.layout is torch.strided:
                nbytes = value.nbytes
                self.nbytes += nbytes
                if torch_memory.storage_bytes(value) > nbytes:
                    self.parts.append(held.alias)
            return held
        if type(value) in _ATOMS or isinstance(value, _BY_REFERENCE):
            return value
        return self._hold_container(value)

    def _hold_container(self, value: Any) -> Any:
        pytree = torch_lookup.pytree()
        leaves, spec = pytree.tree_flatten(value) if pytree is not None else ([value], None)
        if len(leaves) == 1 and leaves[0] is value:
            raise ReplayError(f"an argument is a {type(value).__name__}, which cannot be captured")
        return _HeldContainer([self._hold(leaf) for leaf in leaves], spec)


_SIMPLE: Final = frozenset({type(None), bool, int, float, str, bytes})


def _is_plain(held: HeldTensor) -> bool:
    alias = held.alias
    is_known = type(alias) is Tensor and alias.layout is torch.strided and (alias.is_cpu or alias.is_cuda)
    return is_known and not held.requires_grad and held.version is not None


class _HeldContainer:
    """A container that torch's pytree knows: lists, dictionaries, named tuples, registered classes."""

    __slots__ = ("leaves", "spec")

    def __init__(self, leaves: list[Any], spec: Any) -> None:
        self.leaves = leaves
        self.spec = spec


def _rebuild(held: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(held, HeldTensor):
        tensors[name] = held.again()
        return tensors[name]
    if isinstance(held, _HeldContainer):
        pytree = torch_lookup.pytree()
        assert pytree is not None
        leaves = [_rebuild(leaf, f"{name}[{i}]", tensors) for i, leaf in enumerate(held.leaves)]
        return pytree.tree_unflatten(leaves, held.spec)
    return held


def _differ(one: Tensor, other: Tensor) -> bool:
    if (one.shape, one.dtype, one.device, one.layout) != (
        other.shape,
        other.dtype,
        other.device,
        other.layout,
    ):
        return True
    if one.layout is not torch.strided:
        return False
    return not bool(((one == other) | ((one != one) & (other != other))).all())


def _collect_held(held: Any, name: str, into: dict[str, HeldTensor]) -> None:
    if isinstance(held, HeldTensor):
        into[name] = held
    elif isinstance(held, _HeldContainer):
        for i, leaf in enumerate(held.leaves):
            _collect_held(leaf, f"{name}[{i}]", into)


def find_outputs(output: Any) -> list[Tensor]:
    """Return the differentiable tensors in what a forward returned, in a fixed order, each once.

    Looks into tuples, lists, mappings, dataclasses and the attributes of any other object.
    """
    if isinstance(output, Tensor):
        return [output] if output.requires_grad else []
    found: dict[int, Tensor] = {}
    _collect([output], found, _MAX_DEPTH)
    return list(found.values())


def _collect(values: Iterable[Any], found: dict[int, Tensor], depth: int) -> None:
    for value in values:
        if len(found) >= _MAX_OUTPUTS:
            return
        if isinstance(value, Tensor):
            if value.requires_grad:
                found.setdefault(id(value), value)
        elif type(value) in _ATOMS or isinstance(value, _BY_REFERENCE) or depth == 0:
            continue
        elif isinstance(value, Mapping):
            _collect(itertools.islice(value.values(), _MAX_OUTPUTS), found, depth - 1)
        elif isinstance(value, list | tuple):
            _collect(value[:_MAX_OUTPUTS], found, depth - 1)
        elif dataclasses.is_dataclass(value):
            names = (field.name for field in dataclasses.fields(value))
            _collect((getattr(value, name, None) for name in names), found, depth - 1)
        elif hasattr(value, "__dict__"):
            # One level only: an unknown object may lead anywhere.
            _collect((item for item in vars(value).values() if isinstance(item, Tensor)), found, 1)
