"""What a document of kind `memory_snapshot` holds. Imports no torch: the page and the reports read it too."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from .records import Count, Text

MEMORY_SNAPSHOT: Final = "memory_snapshot"
"""The kind of its documents."""


class CudaMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One device, as torch's caching allocator of this process sees it. Bytes, if nothing else is said."""

    device: Count
    """Its index."""
    name: Text = ""
    allocated_bytes: Count
    """Held by tensors."""
    reserved_bytes: Count
    """Taken from the device: the rest of it is cached for later tensors."""
    peak_allocated_bytes: Count
    """Since the start, or since `torch.cuda.reset_peak_memory_stats`."""
    peak_reserved_bytes: Count
    total_bytes: Count
    """Of the device."""
    retries: Count
    """How often the cache had to be given back before an allocation succeeded."""
    ooms: Count
    """How often the allocator raised `torch.OutOfMemoryError`."""
    segments: Count
    """Blocks of `cudaMalloc` that are reserved."""

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved and held by no tensor: `reserved_bytes` - `allocated_bytes`."""
        return max(self.reserved_bytes - self.allocated_bytes, 0)


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one process and of its machine at one moment. None: not known."""

    label: Annotated[str, msgspec.Meta(max_length=512)]
    cause: Literal["call", "steps", "epoch", "request"]
    """Who asked for it: the script, the cadence in steps, the end of an epoch, or somebody outside."""
    time: float
    """UNIX seconds."""
    step: Count | None = None
    """Newest finished step; None before the first, and outside of a watched run."""
    rss_bytes: Count | None = None
    """Resident memory of the process."""
    uss_bytes: Count | None = None
    """What would be free if this process alone ended: pages that no other process shares."""
    system_used_bytes: Count | None = None
    """Of the machine: total without what programs could get."""
    system_total_bytes: Count | None = None
    tracked_tensors: Count = 0
    """Tensors given to `track_tensor` that live."""
    tracked_bytes: Count = 0
    """Of those."""
    cuda: Annotated[tuple[CudaMemory, ...], msgspec.Meta(max_length=256)] = ()
    """Devices on which this process has reserved memory; empty where CUDA is not in use."""

    def cuda_sum(self, field: str) -> int | None:
        """Return the sum of a field over all devices; None where CUDA is not in use."""
        return sum(getattr(one, field) for one in self.cuda) if self.cuda else None
