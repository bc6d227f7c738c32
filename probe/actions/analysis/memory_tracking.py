"""`memory_tracking`: a block whose memory is measured. `profile_memory`: a reading at a place of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, TypeAlias

from ...memory.process_memory import read_snapshot
from ...memory.repeated_readings import suspect
from .call_results import Result
from .mapped_result import MappedResult
from .snapshot_results import MemoryDifference, MemorySnapshot
from .tensor_lives import alive_now

_MIB: Final = 2**20
Take: TypeAlias = Callable[[str], MemorySnapshot]


def take_snapshot(label: str = "", *, uss: bool = True) -> MemorySnapshot:
    """Read memory now; recorded nowhere. See `probe.take_memory_snapshot`."""
    return MemorySnapshot.of(read_snapshot(label, uss=uss, tracked=alive_now()))


@dataclass(slots=True, kw_only=True)
class TrackedMemory(Result):
    """What `with memory_tracking() as tracked:` gives; whole once the block has ended."""

    _derived = ("change", "cuda_peak")

    label: str
    enabled: bool
    before: MemorySnapshot | None = None
    """When the block began; None where tracking is switched off."""
    after: MemorySnapshot | None = None
    """When it ended, by an exception too; None until then."""
    memory_leaks: list[str] = field(default_factory=list)
    """What is suspected by now, see `probe.profile_memory`: blocks with this label are one place."""
    error: str | None = None
    """Type of the exception that has left the block."""

    @property
    def change(self) -> MemoryDifference | None:
        """What the block has added; None until it has ended."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def cuda_peak(self) -> int | None:
        """Most bytes that CUDA tensors have held within the block, where that was more than ever before.

        None where CUDA is not in use, and where an earlier peak hides that of the block.
        """
        before, after = self.before, self.after
        if before is None or after is None or after.cuda_peak is None:
            return None
        return after.cuda_peak if after.cuda_peak > (before.cuda_peak or 0) else None

    def __str__(self) -> str:
        """The change in a line, and a line for each suspicion."""
        if self.change is None:
            state = "is not tracked" if not self.enabled else "has not ended"
            return f"{self.label}: the block {state}"
        failed = f"\n  left by {self.error}" if self.error else ""
        return "\n".join([f"{self.change}{failed}", *(f"  {leak}" for leak in self.memory_leaks)])


class memory_tracking:  # noqa: N801 - used as a function, like torch.no_grad
    """Measure what a block adds to the memory of process, machine and CUDA.

    Takes a snapshot (without unique pages, 0.1 ms) where the block begins and where it ends. Nests, may be
    entered again, and lets exceptions through. Resets no peak statistics of CUDA.

    Args:
        enabled: None and True measure; False does not.
        label: of the snapshots; blocks with the same one are one place of a loop.
        take: takes the snapshots; a session gives one that records them.
        known_leaks: gives what the run has found.
    """

    def __init__(
        self,
        enabled: bool | None = None,
        *,
        label: str = "block",
        take: Take | None = None,
        known_leaks: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._enabled, self._label = enabled is None or enabled, label
        self._take = take or (lambda text: take_snapshot(text, uss=False))
        self._known_leaks = known_leaks
        self._open: list[TrackedMemory] = []

    def __enter__(self) -> TrackedMemory:
        tracked = TrackedMemory(label=self._label, enabled=self._enabled)
        if self._enabled:
            tracked.before = self._take(f"{self._label}: begin")
        self._open.append(tracked)
        return tracked

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tracked = self._open.pop()
        if tracked.enabled:
            tracked.error = None if kind is None else kind.__name__
            tracked.after = self._take(f"{self._label}: end")
            tracked.memory_leaks = [*self._known_leaks(), *suspect(f"{self._label}: end")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryProfile(MappedResult):
    """What `profile_memory` returns; also a mapping of the same names."""

    label: str
    cpu_memory: float | None
    """Percent (0 to 100) of the machine's memory that is resident in this process; None: not known."""
    gpu_memory: float
    """MiB that tensors of this process hold on all CUDA devices; 0 where it uses none."""
    memory_leaks: tuple[str, ...]
    """A sentence for each leak that is suspected by now; empty while there is none."""
    system_percent: float | None
    """Percent of the machine's memory that all processes use."""
    rss_bytes: int | None
    cuda_reserved: int | None

    def __str__(self) -> str:
        """One line, and a line for each suspicion."""
        share = "-" if self.cpu_memory is None else f"{self.cpu_memory:.2f} %"
        line = f"{self.label}: {share} of the machine's memory, GPU {self.gpu_memory:.1f} MiB"
        return "\n".join([line, *(f"  {leak}" for leak in self.memory_leaks)])


def profile_memory(label: str = "", *, known_leaks: Iterable[str] = ()) -> MemoryProfile:
    """Read memory at a place of a loop, and say what is suspected of leaking there.

    A place is a label without its numbers (`batch_12` and `batch_13` are `batch`). Suspected is memory of
    the process or of CUDA that has grown over two windows of readings of the place in a row (32 at least,
    after the first five), in each quarter of them and at a steady pace, by 4 MiB or more; and what
    the run that is recorded has found (`memory_leak` events). A loop that is steady, or
    fills up at its start, is not suspected.

    Args:
        label: of the place.
        known_leaks: what a run has found.
    """
    snapshot = take_snapshot(label, uss=False)
    return MemoryProfile(
        label=label,
        cpu_memory=snapshot.process_percent,
        gpu_memory=(snapshot.cuda_allocated or 0) / _MIB,
        memory_leaks=(*known_leaks, *suspect(label)),
        system_percent=snapshot.cpu_memory_percent,
        rss_bytes=snapshot.rss_bytes,
        cuda_reserved=snapshot.cuda_reserved,
    )
