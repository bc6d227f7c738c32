"""`profile_memory_usage`: what a model occupies in training, against what is available where it lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ...compat import torch_memory
from ...compat.torch_memory import local_shard
from ...delivery.host_memory import read_memory
from ...memory.memory_limit import memory_use
from . import tables
from .gradient_checks import require_module
from .inspection import bytes_once, inspect_model, state_tensors
from .mapped_result import MappedResult
from .tensor import occupied_bytes

_ADVICE = (
    "A training step would not fit: take a smaller batch, checkpoint activations "
    "(torch.utils.checkpoint), use mixed precision (torch.amp) or an optimizer that keeps less."
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelMemoryUse(MappedResult):
    """Bytes on this rank, memory shared by several tensors counted once; also a mapping of the same names."""

    _derived = ("total", "needed", "share", "fits")

    model: str
    device: str
    """Where most bytes of the parameters lie; `available` and `capacity` are of it."""
    parameters: int
    buffers: int
    gradients: int
    """Those that are there now."""
    missing_gradients: int
    """Those that the next backward will make: of parameters that require one and have none."""
    optimizer_state: int | None
    """None without an optimizer; 0 before its first step, for most make their state then."""
    activations: int | None
    """Saved for the backward of one forward of the input; None without one, or where it was not observed."""
    available: int | None
    """What this process could still get: free memory of the device and torch's cache, or of the machine
    (its container); None: not known."""
    note: str = ""
    """Why there is nothing, where no model was given and none is watched."""
    capacity: int | None
    """The device's memory, or what the machine or its container allows."""

    @property
    def total(self) -> int:
        """Parameters, buffers, gradients, optimizer state and activations, as far as they are known."""
        known = (self.parameters, self.buffers, self.gradients, self.optimizer_state, self.activations)
        return sum(size for size in known if size is not None)

    @property
    def needed(self) -> int:
        """What a training step with this input takes beside what is there: activations, missing gradients."""
        return self.missing_gradients + (self.activations or 0)

    @property
    def share(self) -> float | None:
        """Fraction (0-1) of the capacity that `total` is."""
        return self.total / self.capacity if self.capacity else None

    @property
    def fits(self) -> bool | None:
        """Whether `needed` is available; None where that is not known."""
        return None if self.available is None else self.needed <= self.available

    def __str__(self) -> str:
        """A row for each part, the total, and what is available."""
        if self.note:
            return f"memory of a model: {self.note}"
        parts = ("parameters", "buffers", "gradients", "optimizer_state", "activations", "total")
        rows = [(name.replace("_", " "), tables.size(getattr(self, name))) for name in parts]
        share = "" if self.share is None else f", {self.share:.1%} of {tables.size(self.capacity)}"
        lines = [
            f"memory of {self.model} on {self.device}{share}",
            *tables.table(("part", "size"), rows),
            f"a training step needs {tables.size(self.needed)} more, available {tables.size(self.available)}",
        ]
        return "\n".join([*lines, _ADVICE] if self.fits is False else lines)


def profile_memory_usage(
    model: nn.Module,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    input: Any = None,
) -> ModelMemoryUse:
    """Say what a model takes in training: parameters, gradients, optimizer state, activations, their total.

    Args:
        model: the model; wrappers are looked through.
        optimizer: one or several; their state for these parameters counts.
        input: runs one forward with it, which is undone, as `probe.inspect_model` does, for the activations.

    Raises:
        ValueError: as `probe.inspect_model`.
    """
    root = require_module(model)
    memory = inspect_model(model, input).memory
    assert memory is not None  # there is a model
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    device = _device_of(root)
    available, capacity = _available(device)
    missing = [p for p in root.parameters() if p.requires_grad and p.grad is None]
    return ModelMemoryUse(
        model=type(root).__name__,
        device=str(device),
        parameters=memory.parameters,
        buffers=memory.buffers,
        gradients=memory.gradients,
        missing_gradients=bytes_once(missing),
        optimizer_state=bytes_once(state_tensors(optimizers, root)) if optimizers else None,
        activations=memory.activations,
        available=available,
        capacity=capacity,
    )


def no_memory_use(note: str) -> ModelMemoryUse:
    """Return the result for no model."""
    nothing = dict.fromkeys(("parameters", "buffers", "gradients", "missing_gradients"), 0)
    return ModelMemoryUse(
        model="",
        device="",
        note=note,
        optimizer_state=None,
        activations=None,
        available=None,
        capacity=None,
        **nothing,
    )


def _device_of(root: nn.Module) -> torch.device:
    sizes: Counter[torch.device] = Counter()
    for parameter in root.parameters():
        local: Tensor = local_shard(parameter)
        sizes[local.device] += occupied_bytes(local)
    return max(sizes, key=lambda device: sizes[device]) if sizes else torch.device("cpu")


def _available(device: torch.device) -> tuple[int | None, int | None]:
    """Bytes that this process could get there, and those that there are."""
    if device.type == "cuda" and torch_memory.cuda_is_initialised():
        free, total = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached, total
    if device.type != "cpu" or (sample := read_memory()) is None:
        return None, None
    use = memory_use(sample.system_used_bytes, sample.system_total_bytes)
    return int(use.total - use.used), int(use.total)
