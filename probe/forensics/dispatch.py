"""The dispatch mode of a replay's first pass, and what both passes share: the guard of the training state.

An op that would write to memory the replay did not make is refused before it runs. Active on the replaying
thread, and on autograd's device threads during a backward on CUDA.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ..compat import torch_memory
from ..compat.torch_modes import EagerMode, schema_of
from ..compat.torch_ranks import COLLECTIVES
from ..errors import ReplayError
from .tensor_facts import is_checkable, zero_if_finite

_FRESH: Final = "lift_fresh"
"""A view by its schema, of what `torch.tensor` has just filled with numbers of Python's."""


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What the schema says about one op."""

    name: str
    written: tuple[int | str, ...]
    """Positions and names of the arguments that it writes."""
    is_view: bool
    is_uninitialised: bool
    is_collective: bool


class GuardedMode(EagerMode):
    """Counts ops, keeps the deadline and refuses writes to memory that is not the replay's own."""

    def __init__(self, *, deadline_s: float, writable: Iterable[Tensor]) -> None:
        """Take the deadline on `time.monotonic` and the tensors, buffer copies, that may be written."""
        super().__init__()
        self.count = 0
        self._deadline_s = deadline_s
        self._owned = {torch_memory.storage_key(tensor) for tensor in writable}
        self._infos: dict[Any, OpInfo] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        info = self._infos.get(func) or self._inspect(func)
        index, self.count = self.count, self.count + 1
        self._check(info, args, kwargs)
        inputs = list(tensors_in((*args, *kwargs.values())))
        out = self.observe(index, info, (func, args, kwargs), inputs)
        if info.name == _FRESH:
            # The memory of an array of NumPy's is not the replay's own; torch cannot resize it.
            own = (tensor for tensor in inputs if tensor.untyped_storage().resizable())
            self._owned |= {torch_memory.storage_key(tensor) for tensor in own}
        elif not info.is_view:
            known = {torch_memory.storage_key(tensor) for tensor in inputs}
            fresh = {torch_memory.storage_key(tensor) for tensor in tensors_in((out,))} - known
            self._owned |= fresh
        return out

    def begin_backward(self) -> None:
        """A backward pass is about to run."""

    def take_gradients(self, gradients: Iterable[Tensor]) -> None:
        """These come from outside of the root and are about to be sent back."""

    def observe(self, index: int, info: OpInfo, call: Any, inputs: list[Tensor]) -> Any:
        """Run the op and note what is wanted of it."""
        raise NotImplementedError

    def _check(self, info: OpInfo, args: Any, kwargs: Any) -> None:
        if time.monotonic() > self._deadline_s:
            raise ReplayError("the replay took longer than its time limit (replay_limit_s)")
        if info.is_collective:
            raise ReplayError("the step talks to other ranks, which do not replay")
        for tensor in written_tensors(info, args, kwargs):
            key = torch_memory.storage_key(tensor)
            if key and key not in self._owned:
                raise ReplayError(f"{info.name} would change a tensor that the replay does not own")

    def _inspect(self, func: Any) -> OpInfo:
        schema = schema_of(func)
        if schema is None:
            # A higher-order operator: it only calls functions, whose ops come by on their own.
            return self._infos.setdefault(func, OpInfo(func.name(), (), False, False, False))
        written: list[int | str] = []
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += [argument.name] if argument.kwarg_only else [position, argument.name]
        returns = [result.alias_info for result in schema.returns]
        name = schema.name.rsplit("::", 1)[-1]
        info = OpInfo(
            name=name,
            written=tuple(written),
            is_view=not written and bool(returns) and all(alias is not None for alias in returns),
            is_uninitialised=name.startswith(("empty", "new_empty", "resize_")),
            is_collective=func.namespace in COLLECTIVES,
        )
        self._infos[func] = info
        return info


class OutputScan(GuardedMode):
    """First pass: outputs only, one read by the host at the end."""

    def __init__(self, *, deadline_s: float, writable: Iterable[Tensor]) -> None:
        """See `GuardedMode`."""
        super().__init__(deadline_s=deadline_s, writable=writable)
        self._indices: list[int] = []
        self._names: list[str] = []
        self._zeros: list[Tensor] = []

    def observe(self, index: int, info: OpInfo, call: Any, inputs: list[Tensor]) -> Any:
        """Run the op; keep a scalar on the device that is zero unless an output is non-finite."""
        func, args, kwargs = call
        out = func(*args, **kwargs)
        if not (info.is_view or info.is_uninitialised):
            for tensor in tensors_in((out,)):
                if is_checkable(tensor):
                    self._indices.append(index)
                    self._names.append(info.name)
                    self._zeros.append(zero_if_finite(tensor))
        return out

    def bad_ops(self) -> dict[int, str]:
        """Return the ops with a non-finite output, by position. Synchronises once per device."""
        bad: dict[int, str] = {}
        for device in {zero.device for zero in self._zeros}:
            own = [position for position, zero in enumerate(self._zeros) if zero.device == device]
            values = torch.stack([self._zeros[position] for position in own]).tolist()
            found = (p for p, value in zip(own, values, strict=True) if value != 0.0)
            bad |= {self._indices[p]: self._names[p] for p in found}
        return bad


def written_tensors(info: OpInfo, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors that an op writes to, by its schema."""
    for position in info.written:
        if isinstance(position, str):
            yield from tensors_in((kwargs.get(position),))
        elif position < len(args):
            yield from tensors_in((args[position],))


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments or results, lists and tuples included."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
