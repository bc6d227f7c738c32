"""What the memory of a training is for: parameters, gradients, optimizer state, activations, and the rest.

Read by the measures on the training thread, where memory has just been read. Adds up sizes: reads no element,
allocates nothing on a device, waits for none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from ..compat.torch_memory import coo_parts, local_shard
from ..compat.weak_tables import WeakTable

_SHARE: Final = 2000
"""A reading waits this many times as long as the one before took: 0.05 % of the time at most."""
_CPU: Final = torch.device("cpu")
_STATES_AT_ONCE: Final = 128
"""Parameters whose state is read anew in a reading."""


class MemoryKinds:
    """Sums of one model, those of its device: that on which most bytes of its parameters lie.

    Args:
        clock_ns: monotonic.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._next_ns = 0
        self._activations: float | None = None
        self._watched: Sequence[Tensor] = ()
        self._parameters, self._device = 0.0, _CPU
        self._sizes: list[tuple[Tensor, int]] = []
        """Watched parameters of the device, and their bytes."""
        self._states: WeakTable[Optimizer, _States] = WeakTable()

    def note_activations(self, saved_bytes: float) -> None:
        """A forward was measured: it has kept so much for its backward."""
        self._activations = saved_bytes
        self._next_ns = 0

    def read(
        self,
        watched: Sequence[Tensor],
        *,
        all_parameters: Callable[[], Iterable[Tensor]],
        optimizers: Iterable[Optimizer],
        memory: Mapping[str, float],
    ) -> dict[str, float]:
        """Return the sums in bytes, under the names of `wire.SCALARS`; nothing where it is too early.

        Args:
            watched: trainable parameters, whose gradients are there; the same object while they are the same.
            all_parameters: gives those and the frozen ones; called where `watched` is another object.
            optimizers: those that update them.
            memory: what has just been read, under the names of `wire.SCALARS`.
        """
        began_ns = self._clock_ns()
        if began_ns < self._next_ns:
            return {}
        if watched is not self._watched:
            self._watched = watched
            self._device, self._parameters = _most_on(all_parameters())
            self._sizes = [(one, tensor_bytes(one)) for one in watched if one.device == self._device]
        total = memory.get("cuda_allocated_bytes" if self._is_current_device() else "process_rss_bytes")
        if total is None and self._device.type in ("cpu", "cuda"):
            return {}
        sums = {
            "memory_parameters_bytes": self._parameters,
            "memory_gradients_bytes": float(_gradient_bytes(self._sizes)),
            "memory_optimizer_bytes": float(sum(map(self._state_bytes, optimizers))),
        }
        rest = None if total is None else total - sum(sums.values())
        if self._activations is not None:
            sums["memory_activations_bytes"] = self._activations
        # Parameters that lie on several devices, or in pages that are swapped out, leave no rest.
        if rest is not None and rest >= 0 and (self._device == _CPU or self._is_current_device()):
            sums["memory_other_bytes"] = rest
        self._next_ns = began_ns + _SHARE * (self._clock_ns() - began_ns)
        return sums

    def _is_current_device(self) -> bool:
        """Whether torch's figure of allocated memory is of the device."""
        return self._device.type == "cuda" and self._device.index == torch.cuda.current_device()

    def _state_bytes(self, optimizer: Optimizer) -> int:
        states = self._states.setdefault(optimizer, _States())
        return states.read(optimizer, self._device)


class _States:
    """Sizes of an optimizer's state for each parameter; a part of them is read anew each time.

    To read those of 2,000 parameters takes 5 ms, and after the first update they stay as they are.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._next = 0

    def read(self, optimizer: Optimizer, device: torch.device) -> int:
        states = list(optimizer.state.values())
        count = len(states)
        if count != len(self._sizes):
            self._sizes, chosen = [0] * count, range(count)
        else:
            chosen = range(self._next, min(self._next + _STATES_AT_ONCE, count))
        for at in chosen:
            tensors = _tensors_of(states[at])
            self._sizes[at] = sum(tensor_bytes(one) for one in tensors if one.device == device)
        self._next = chosen.stop if chosen.stop < count else 0
        return sum(self._sizes)


def _gradient_bytes(sizes: Iterable[tuple[Tensor, int]]) -> int:
    """Bytes of the gradients that are there: as many as the parameter's, as a rule."""
    total = 0
    for parameter, size in sizes:
        gradient = parameter.grad
        if gradient is not None:
            is_alike = gradient.layout is torch.strided and gradient.dtype is parameter.dtype
            total += size if is_alike else tensor_bytes(gradient)
    return total


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements on this rank, a sparse one's indices included."""
    tensor = local_shard(tensor)
    if tensor.layout is torch.strided:
        return tensor.numel() * tensor.element_size()
    if tensor.layout is not torch.sparse_coo:
        return 0
    return sum(part.numel() * part.element_size() for part in coo_parts(tensor))


def _most_on(parameters: Iterable[Tensor]) -> tuple[torch.device, float]:
    """The device that has most of their bytes, and how many."""
    sizes: Counter[torch.device] = Counter()
    for parameter in parameters:
        sizes[parameter.device] += tensor_bytes(parameter)
    if not sizes:
        return _CPU, 0.0
    device, size = sizes.most_common(1)[0]
    return device, float(size)


def _tensors_of(state: Any) -> Iterator[Tensor]:
    """The tensors of a parameter's state; also those in lists, as L-BFGS keeps them."""
    for value in state.values() if issubclass(type(state), dict) else ():
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from (one for one in value if isinstance(one, Tensor))
