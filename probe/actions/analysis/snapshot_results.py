"""Memory snapshots as results: one moment, the difference of two, the trend of many. Pure; sizes in bytes.

What takes them is `memory/process_memory.py`. A size that is not known is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from ...detectors.trends import fit_line
from ...wire import memory_snapshots as wire
from . import tables
from .call_results import Result
from .mapped_result import MappedResult

Size: TypeAlias = Literal[
    "rss_bytes",
    "uss_bytes",
    "system_used_bytes",
    "cuda_allocated",
    "cuda_reserved",
    "cuda_peak",
    "cuda_fragmentation",
]
"""A size of a snapshot by its name."""
Axis: TypeAlias = Literal["time", "step", "snapshot"]
SIZES: Final[tuple[Size, ...]] = get_args(Size)
_AXES: Final[tuple[Axis, ...]] = get_args(Axis)
_UNITS: Final[dict[Axis, str]] = {"time": "second", "step": "step", "snapshot": "snapshot"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory(Result):
    """One CUDA device, as torch's allocator of this process sees it; see `torch.cuda.memory_stats`."""

    _derived = ("fragmentation_bytes",)

    device: int
    name: str
    allocated_bytes: int
    """Held by tensors."""
    reserved_bytes: int
    """Taken from the device; what no tensor holds of it is cached."""
    peak_allocated_bytes: int
    """Since the start, or since `torch.cuda.reset_peak_memory_stats`."""
    peak_reserved_bytes: int
    total_bytes: int
    retries: int
    """How often the cache had to be given back before an allocation succeeded."""
    ooms: int
    """How often the allocator raised `torch.OutOfMemoryError`."""
    segments: int
    """Reserved blocks of `cudaMalloc`."""

    @property
    def fragmentation_bytes(self) -> int:
        """Reserved and held by no tensor."""
        return max(self.reserved_bytes - self.allocated_bytes, 0)

    def __str__(self) -> str:
        """One line."""
        return (
            f"cuda:{self.device}: allocated {tables.size(self.allocated_bytes)}, reserved "
            f"{tables.size(self.reserved_bytes)} of {tables.size(self.total_bytes)}, peak "
            f"{tables.size(self.peak_allocated_bytes)}, {self.retries} retries, {self.ooms} out of memory"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemorySnapshot(MappedResult):
    """Memory at one moment; also a mapping of the same names.

    `cuda_memory` has each device; `cuda_allocated`, `cuda_reserved`, `cuda_peak` and `cuda_fragmentation`
    are sums over them, None where this process does not use CUDA.
    """

    _derived = (
        *("timestamp", "cpu_memory_percent", "process_percent", "cuda_allocated", "cuda_reserved"),
        *("cuda_peak", "cuda_fragmentation"),
    )

    label: str
    time: float
    """UNIX seconds."""
    step: int | None
    """Newest finished step of the run; None outside of one."""
    cause: str
    """`call`, `steps` (the cadence) or `epoch`."""
    rss_bytes: int | None
    """Resident memory of the process."""
    uss_bytes: int | None
    """What would be free if this process alone ended."""
    system_used_bytes: int | None
    system_total_bytes: int | None
    tracked_tensors: int
    """Tensors given to `probe.track_tensor` that live."""
    tracked_bytes: int
    cuda_memory: tuple[DeviceMemory, ...]

    @classmethod
    def of(cls, body: wire.MemorySnapshot) -> MemorySnapshot:
        """Return what a document says, as a result."""
        fields = msgspec.structs.asdict(body)
        devices = tuple(DeviceMemory(**msgspec.structs.asdict(one)) for one in fields.pop("cuda"))
        return cls(**fields, cuda_memory=devices)

    @property
    def timestamp(self) -> str:
        """`time` as ISO 8601, in UTC."""
        return datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")

    @property
    def cpu_memory_percent(self) -> float | None:
        """Share of the machine's memory that is in use by all processes, 0 to 100."""
        return _percent(self.system_used_bytes, self.system_total_bytes)

    @property
    def process_percent(self) -> float | None:
        """Share of the machine's memory that is resident in this process, 0 to 100."""
        return _percent(self.rss_bytes, self.system_total_bytes)

    @property
    def cuda_allocated(self) -> int | None:
        """Bytes held by tensors on all devices."""
        return self._sum("allocated_bytes")

    @property
    def cuda_reserved(self) -> int | None:
        """Bytes that the allocator has taken from all devices."""
        return self._sum("reserved_bytes")

    @property
    def cuda_peak(self) -> int | None:
        """Most bytes that tensors have held, summed over the devices."""
        return self._sum("peak_allocated_bytes")

    @property
    def cuda_fragmentation(self) -> int | None:
        """Bytes reserved and held by no tensor."""
        return self._sum("fragmentation_bytes")

    def _sum(self, name: str) -> int | None:
        return sum(getattr(one, name) for one in self.cuda_memory) if self.cuda_memory else None

    def compare(self, later: MemorySnapshot) -> MemoryDifference:
        """Return what has changed until a later snapshot."""
        return compare_memory_snapshots(self, later)

    def __sub__(self, earlier: MemorySnapshot) -> MemoryDifference:
        return compare_memory_snapshots(earlier, self)

    def __str__(self) -> str:
        """One line, and one more for each device."""
        parts = [f"process {tables.size(self.rss_bytes)}"]
        if self.uss_bytes is not None:
            parts.append(f"its own {tables.size(self.uss_bytes)}")
        if self.cpu_memory_percent is not None:
            parts.append(f"machine {self.cpu_memory_percent:.1f} % of {tables.size(self.system_total_bytes)}")
        if self.tracked_tensors:
            parts.append(f"{self.tracked_tensors} tracked tensors {tables.size(self.tracked_bytes)}")
        name = self.label or self.timestamp
        return "\n".join([f"{name}: {', '.join(parts)}", *(f"  {one}" for one in self.cuda_memory)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryDifference(MappedResult):
    """What has changed from one snapshot to another, bytes; None where one of them does not know."""

    before: str
    """Labels."""
    after: str
    seconds: float
    steps: int | None
    rss_bytes: int | None
    uss_bytes: int | None
    system_used_bytes: int | None
    cuda_allocated: int | None
    cuda_reserved: int | None
    cuda_peak: int | None
    cuda_fragmentation: int | None

    def __str__(self) -> str:
        """One line: what is known, with its sign."""
        names = {"rss_bytes": "process", "uss_bytes": "its own", "system_used_bytes": "machine"}
        parts = [
            f"{names.get(name, name.replace('_', ' '))} {tables.signed_size(change)}"
            for name in SIZES
            if (change := getattr(self, name)) is not None
        ]
        steps = "" if self.steps is None else f", {self.steps:,} step{'' if self.steps == 1 else 's'}"
        span = f"{tables.duration(self.seconds)}{steps}"
        return f"{self.before or 'before'} -> {self.after or 'after'} ({span}): {', '.join(parts)}"


def compare_memory_snapshots(before: MemorySnapshot, after: MemorySnapshot) -> MemoryDifference:
    """Return `after` - `before` of each size, in bytes."""
    changes = {name: _difference(getattr(before, name), getattr(after, name)) for name in SIZES}
    return MemoryDifference(
        before=before.label,
        after=after.label,
        seconds=after.time - before.time,
        steps=_difference(before.step, after.step),
        **changes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryTrend(MappedResult):
    """A straight line through one size of several snapshots, by least squares."""

    of: str
    per: str
    """second, step or snapshot."""
    count: int
    """Snapshots that know the size, and the step where it is per step."""
    first_bytes: int | None
    last_bytes: int | None
    slope: float | None
    """Bytes per `per`; None for fewer than two of them at different moments."""
    slope_low: float | None
    """95 % interval of the slope; None for fewer than three."""
    slope_high: float | None
    is_growing: bool
    """Whether the whole interval is above zero. A warm-up grows too: leave the first snapshots out."""

    def __str__(self) -> str:
        """One sentence."""
        if self.slope is None:
            return f"{self.of}: {self.count} snapshots are too few for a trend."
        interval = ""
        if self.slope_low is not None and self.slope_high is not None:
            low, high = tables.signed_size(self.slope_low), tables.signed_size(self.slope_high)
            interval = f" (95 % interval {low} to {high})"
        verb = "grows by" if self.is_growing else "changes by"
        return (
            f"{self.of} {verb} {tables.signed_size(self.slope)} per {self.per}{interval}, "
            f"over {self.count} snapshots."
        )


def memory_trend(
    snapshots: Iterable[MemorySnapshot], *, of: Size = "rss_bytes", against: Axis = "time"
) -> MemoryTrend:
    """Fit a line to one size of some snapshots by ordinary least squares.

    Args:
        snapshots: in any order; those that do not know the size (or the step) are left out.
        of: which size.
        against: `time` (bytes a second), `step` (bytes a step) or `snapshot` (bytes from one to the next).

    Raises:
        ValueError: no such size or axis.
    """
    for name, value, allowed in (("of", of, SIZES), ("against", against, _AXES)):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} is not available; choose one of {', '.join(allowed)}")
    in_order = sorted(snapshots, key=lambda one: one.time)
    known = [one for one in in_order if getattr(one, of) is not None]
    if against == "step":
        known = [one for one in known if one.step is not None]
    start = known[0].time if known else 0.0
    places = [_place(one, index, against, start) for index, one in enumerate(known)]
    sizes = [int(getattr(one, of)) for one in known]
    line = fit_line(places, sizes)
    return MemoryTrend(
        of=of,
        per=_UNITS[against],
        count=len(known),
        first_bytes=sizes[0] if sizes else None,
        last_bytes=sizes[-1] if sizes else None,
        slope=None if line is None else line.slope,
        slope_low=None if line is None else line.low,
        slope_high=None if line is None else line.high,
        is_growing=line is not None and line.rises,
    )


def _place(snapshot: MemorySnapshot, index: int, against: Axis, start: float) -> float:
    if against == "step":
        return float(snapshot.step or 0)
    return snapshot.time - start if against == "time" else float(index)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _percent(part: int | None, total: int | None) -> float | None:
    return None if part is None or not total else 100.0 * part / total
