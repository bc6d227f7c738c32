"""What holds the memory when it has run out: the largest live tensors, totals by kind, what was asked for.

Called for the event of an out-of-memory error, on the training thread. Allocates little, and nothing on a
device; the script's frames, which the traceback keeps, tell the names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..compat import all_objects, torch_memory
from ..delivery.host_memory import read_memory
from ..wire.findings import size_text
from .heap_meter import heap_reader
from .memory_limit import memory_use
from .reachable import traceback_frames, variables, walk

Kind: TypeAlias = Literal["parameters", "gradients", "optimizer state", "buffers", "other tensors"]
_KINDS: Final[tuple[Kind, ...]] = ("parameters", "gradients", "optimizer state", "buffers", "other tensors")
_UNITS: Final[Mapping[str, int]] = {
    "bytes": 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
}
_ASKED: Final = re.compile(r"(?:[Tt]ried|[Uu]nable) to allocate ([\d.]+) ?(bytes|[KMGTP]iB|B)")
_WALK_NS: Final = 200_000_000
_SHOWN: Final = 5
_LEAST_SHOWN: Final = 2**20


class Block(NamedTuple):
    """Memory of one storage, however many tensors share it."""

    bytes: int
    kind: Kind
    name: str
    """``0.weight``, ``exp_avg of 0.weight``, ```scores` in attend(), model.py``; "" if unknown."""
    what: str
    """``float32 (512, 512)``."""


class LiveMemory(msgspec.Struct):
    """What was alive on one device, and what was asked for. None: not known."""

    device: str
    blocks: dict[int, Block] = msgspec.field(default_factory=dict)
    """By the address of the storage."""
    asked_bytes: float | None = None
    free_bytes: float | None = None
    total_bytes: float | None = None
    """Of the device, of the machine, or what its container may use."""
    has_all: bool = True
    """Whether all tensors were looked at, also those that no variable leads to."""
    used_bytes: float | None = None
    """Handed out by the allocator: what is not in `blocks` is the graph's, or not torch's."""

    def totals(self) -> dict[Kind, int]:
        """Return bytes by kind."""
        sums = dict.fromkeys(_KINDS, 0)
        for block in self.blocks.values():
            sums[block.kind] += block.bytes
        return sums

    @property
    def rest_bytes(self) -> float | None:
        """What no tensor that Python knows holds: saved for backward, for the most part."""
        if self.used_bytes is None or not self.has_all:
            return None
        return max(self.used_bytes - sum(self.totals().values()), 0.0)

    def may_be_for_backward(self) -> bool | None:
        """Whether a tenth or more may be activations kept for backward; None where that is not known."""
        sums = self.totals()
        rest = sums["other tensors"] + (self.rest_bytes or 0.0)
        held = sum(sums.values()) + (self.rest_bytes or 0.0)
        return None if self.rest_bytes is None or not held else rest >= held / 10

    def largest(self, count: int) -> list[Block]:
        """Return the largest blocks, largest first."""
        return sorted(self.blocks.values(), key=lambda block: -block.bytes)[:count]

    def numbers(self) -> dict[str, float]:
        """Return what an event keeps beside its message, in bytes."""
        numbers = {f"{kind.replace(' ', '_')}_bytes": float(size) for kind, size in self.totals().items()}
        known = {
            "free_bytes": self.free_bytes,
            "total_bytes": self.total_bytes,
            "rest_bytes": self.rest_bytes,
        }
        return numbers | {name: value for name, value in known.items() if value is not None}

    def lines(self, *, batch: int | None = None) -> list[str]:
        """Say it in a few sentences.

        Args:
            batch: samples of the step that failed; None: not known.
        """
        return [line for line in (self._asked(), self._held(), self._shown(), self._fits(batch)) if line]

    def _asked(self) -> str:
        if self.asked_bytes is None or self.free_bytes is None:
            return ""
        of = "" if self.total_bytes is None else f" of {size_text(self.total_bytes)}"
        free = f"{size_text(self.free_bytes)}{of} were free on {self.device}"
        text = f"Asked for {size_text(self.asked_bytes)}, where {free}"
        times = self.asked_bytes / max(self.free_bytes, 1.0)
        return f"{text}: {times:,.3g} times that." if times >= 1.005 else f"{text}."

    def _held(self) -> str:
        parts = [f"{kind} {size_text(size)}" for kind, size in self.totals().items() if size]
        if self.rest_bytes is not None:
            parts.append(
                "not held by tensors of the script (saved for backward, libraries) "
                f"{size_text(self.rest_bytes)}"
            )
        return f"Alive on {self.device}: {', '.join(parts)}." if parts else ""

    def _shown(self) -> str:
        shown = [block for block in self.largest(_SHOWN) if block.bytes >= _LEAST_SHOWN]
        texts = [
            f"{size_text(block.bytes)} {block.name or 'without a name'}, {block.what}" for block in shown
        ]
        return f"Largest: {'; '.join(texts)}." if texts else ""

    def _fits(self, batch: int | None) -> str:
        if batch is None or batch < 2 or self.asked_bytes is None or self.free_bytes is None:
            return ""
        if not self.has_all:
            return ""
        variable = self.totals()["other tensors"] + (self.rest_bytes or 0.0)
        most = largest_batch(batch, free=self.free_bytes, asked=self.asked_bytes, variable=variable)
        if not most:
            return ""
        return (
            f"At most {most:,} samples in place of {batch:,} would have fitted, if all grows with the batch."
        )


def largest_batch(batch: int, *, free: float, asked: float, variable: float) -> int | None:
    """Return the most samples for which a block that did not fit would have; None where it would have.

    What the step holds by now and what it asks for are taken to grow in proportion to the batch:
    ``most (variable + asked) / batch <= variable + free``. More may be asked for later: an upper bound.

    Args:
        batch: samples of the step.
        free: bytes left.
        asked: bytes of the block.
        variable: bytes that the step holds already.
    """
    if asked <= free or variable + asked <= 0:
        return None
    return int(batch * (variable + free) / (variable + asked))


def asked_bytes(error: BaseException) -> float | None:
    """Return the size in the message of torch's allocators or of numpy; None where it says none."""
    found = _ASKED.search(str(error))
    return float(found[1].rstrip(".")) * _UNITS[found[2]] if found else None


def describe_live_memory(
    error: BaseException,
    trace: TracebackType | None,
    *,
    model: nn.Module | None = None,
    optimizers: Iterable[Optimizer] = (),
) -> LiveMemory:
    """Find out what was alive on the device whose memory ran out.

    Args:
        error: the exception.
        trace: its traceback.
        model: the naming root.
        optimizers: those that update it.
    """
    on_cuda = isinstance(error, torch.OutOfMemoryError) and torch_memory.cuda_is_initialised()
    live = LiveMemory("the device" if on_cuda else "the machine", asked_bytes=asked_bytes(error))
    device = "cuda" if on_cuda else "cpu"
    _read_use(live, on_cuda=on_cuda)
    names: dict[int, str] = {}
    if model is not None:
        _add_model(live, model, device, names)
    for optimizer in optimizers:
        _add_state(live, optimizer, device, names)
    for value, access in walk(
        variables(traceback_frames(trace)), deadline_ns=time.thread_time_ns() + _WALK_NS
    ):
        if issubclass(type(value), Tensor):
            _add(live, value, "other tensors", f"`{access.text()}` {access.root.place}", device)
    tensors = all_objects.faults.instances(Tensor)
    live.has_all = tensors is not None
    for tensor in tensors or ():
        _add(live, tensor, "other tensors", "", device)
    return live


def _read_use(live: LiveMemory, *, on_cuda: bool) -> None:
    if on_cuda:
        free, total = torch.cuda.mem_get_info()
        # What the allocator keeps for itself without using it is free for another block of its size.
        live.used_bytes = float(torch.cuda.memory_allocated())
        live.free_bytes = float(free + torch.cuda.memory_reserved()) - live.used_bytes
        live.total_bytes = float(total)
        return
    if (sample := read_memory()) is not None:
        use = memory_use(sample.system_used_bytes, sample.system_total_bytes)
        live.free_bytes, live.total_bytes = use.total - use.used, use.total
    read_heap = heap_reader()
    live.used_bytes = None if read_heap is None else read_heap()


def _add_model(live: LiveMemory, model: nn.Module, device: str, names: dict[int, str]) -> None:
    for name, parameter in model.named_parameters():
        names[id(parameter)] = name
        _add(live, parameter, "parameters", name, device)
        if type(parameter.grad) is Tensor:
            _add(live, parameter.grad, "gradients", f"gradient of {name}", device)
    for name, buffer in model.named_buffers():
        _add(live, buffer, "buffers", name, device)


def _add_state(live: LiveMemory, optimizer: Optimizer, device: str, names: Mapping[int, str]) -> None:
    for parameter, state in list(dict.items(optimizer.state)):
        if issubclass(type(state), dict):
            owner = names.get(id(parameter), "a parameter")
            for key, value in list(dict.items(state)):
                if issubclass(type(value), Tensor):
                    _add(live, value, "optimizer state", f"{key} of {owner}", device)


def _add(live: LiveMemory, tensor: Tensor, kind: Kind, name: str, device: str) -> None:
    """Count a tensor's storage, unless it is counted already or lies elsewhere."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.device.type != device:
        return
    key, size = torch_memory.storage_key(tensor), torch_memory.storage_bytes(tensor)
    if not key or key in live.blocks:
        return
    what = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    live.blocks[key] = Block(size, kind, name, what)
