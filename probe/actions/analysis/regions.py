"""`debug_context`: named regions of a script with their time and memory.

Any thread, and coroutines: each has its own nesting. What was measured is kept by name, in a bounded table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, NamedTuple

import torch

from ...compat import torch_memory
from ...delivery.host_memory import resident_bytes
from ..running_sessions import EventSink
from . import tables
from .anomaly_mode import anomaly_detection
from .call_results import Result
from .region_errors import note_region_error

_logger = logging.getLogger(__name__)

MAX_REGIONS: Final = 1000
"""Names that are kept; further ones are counted together."""
MAX_RUNS: Final = 1000
"""Newest runs that are kept one by one."""
AVERAGED_RUNS: Final = 20
"""Newest runs whose average is judged."""
_REST: Final = "(other regions)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionReport(Result):
    """One run through a region."""

    _derived = ("ok",)

    name: str
    path: str
    """Names of the regions round it, outermost first, and its own: ``epoch/validation``."""
    duration_s: float
    """Wall-clock; in a coroutine the awaits too. CUDA work that was only launched is not in it."""
    cpu_s: float
    """Processor time of the whole process."""
    rss_delta_bytes: int
    """Growth of the process's resident memory."""
    rss_bytes: int
    """Resident memory at the end."""
    cuda_delta_bytes: int | None
    """Growth of what torch has allocated on the current device; None without CUDA."""
    cuda_peak_bytes: int | None
    """Most that torch has had allocated there since the script last reset it; None without CUDA."""
    error: str | None
    """Class of the exception that left the region."""
    cuda_bytes: int | None = None
    """What torch has allocated there at the end."""
    steps: tuple[int, int] | None = None
    """First and last step whose gradients were made or used in it; None where there was none."""

    @property
    def ok(self) -> bool:
        """No exception left the region."""
        return self.error is None

    def __str__(self) -> str:
        """One line."""
        cuda = "" if self.cuda_delta_bytes is None else f", CUDA {tables.signed_size(self.cuda_delta_bytes)}"
        end = "" if self.error is None else f", left by {self.error}"
        return (
            f"{self.path}: {tables.duration(self.duration_s)} (CPU {tables.duration(self.cpu_s)}), "
            f"memory {tables.signed_size(self.rss_delta_bytes)}{cuda}{end}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionStatistics(Result):
    """All runs through the regions of one path."""

    _derived = ("mean_s",)

    path: str
    count: int
    errors: int
    total_s: float
    max_s: float
    last_s: float
    max_rss_delta_bytes: int
    running_mean_s: float = 0.0
    """Average of the newest 20 runs, which is what `slow_above_s` limits."""
    total_rss_bytes: int = 0
    """Resident memory of the process at the ends, added up."""
    rss_delta_bytes: int = 0
    """Of the newest run."""
    cuda_bytes: int | None = None
    """What torch had allocated on the current device at the end of the newest run; None without CUDA."""
    max_cuda_delta_bytes: int | None = None
    gradient_anomalies: int | None = None
    """Events about gradients at steps that it was a part of; None outside a session."""

    @property
    def mean_s(self) -> float:
        """Average wall-clock seconds."""
        return self.total_s / self.count

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.path}: {self.count} times, {tables.duration(self.mean_s)} on average, "
            f"{tables.duration(self.max_s)} at most, {self.errors} errors"
        )


class RegionTable:
    """Statistics of regions by path; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, RegionStatistics] = {}
        self._recent: dict[str, deque[float]] = {}
        """Seconds of the newest runs, by path."""
        self._runs: deque[RegionReport] = deque(maxlen=MAX_RUNS)

    def add(self, report: RegionReport) -> RegionStatistics:
        """Count one run; return what its path has come to."""
        with self._lock:
            self._runs.append(report)
            is_known = report.path in self._rows or len(self._rows) < MAX_REGIONS
            path = report.path if is_known else _REST
            row = self._rows.get(path)
            if row is None:
                row = RegionStatistics(
                    path=path, count=0, errors=0, total_s=0.0, max_s=0.0, last_s=0.0, max_rss_delta_bytes=0
                )
            recent = self._recent.setdefault(path, deque(maxlen=AVERAGED_RUNS))
            recent.append(report.duration_s)
            row = self._rows[path] = replace(
                row,
                count=row.count + 1,
                errors=row.errors + (report.error is not None),
                total_s=row.total_s + report.duration_s,
                max_s=max(row.max_s, report.duration_s),
                last_s=report.duration_s,
                max_rss_delta_bytes=max(row.max_rss_delta_bytes, report.rss_delta_bytes),
                running_mean_s=sum(recent) / len(recent),
                total_rss_bytes=row.total_rss_bytes + report.rss_bytes,
                rss_delta_bytes=report.rss_delta_bytes,
                cuda_bytes=report.cuda_bytes,
                max_cuda_delta_bytes=_larger(row.max_cuda_delta_bytes, report.cuda_delta_bytes),
            )
            return row

    def runs(self) -> tuple[RegionReport, ...]:
        """The newest 1000 runs of all regions, in the order of their ends."""
        with self._lock:
            return tuple(self._runs)

    def rows(self) -> tuple[RegionStatistics, ...]:
        """In the order in which the regions first ended."""
        with self._lock:
            return tuple(self._rows.values())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._rows.clear()
            self._recent.clear()
            self._runs.clear()


class Progress(NamedTuple):
    """Where a training is."""

    step: int
    """That is under way, or about to begin."""
    backwards: int
    """That it has had."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A region that has begun and not ended."""

    region: debug_context
    path: str
    began_ns: int
    cpu_ns: int
    rss_bytes: int
    cuda_bytes: int | None
    anomaly: anomaly_detection | None
    progress: Progress | None
    is_kept: bool


_open: ContextVar[tuple[_Entry, ...]] = ContextVar("nanscope_open_regions", default=())
"""Of this thread or coroutine, outermost first."""


class debug_context:  # noqa: N801 - used like a function, as `torch.no_grad` is
    """Name a region: its time and memory are measured and kept. Nests, is re-entrant, lets exceptions pass.

    Costs about 50 us. `report` holds the newest run through this object.

    Args:
        name: what the region is called.
        anomaly: autograd's anomaly mode inside, see `anomaly_detection`.
        slow_above_s: while the newest 20 runs through the region's path take longer on average, it is slow:
            that is logged once, as a warning. None never is.
        logger: gets that warning, and the exceptions that leave the region.
        table: tells where the measurements go; to the process's own by default.
        progress: tells where a training is.
        on_end: called with each report, what its path has come to, and the limit; whether it is recorded.
        session: records an exception that leaves the region; the newest running session by default.
        enabled: False does nothing at all, True always measures and keeps; None asks `is_on`.
        is_on: asked at each beginning, where `enabled` is None. Where it says no, `report` is all that there
            is of the region: nothing is kept or told, and anomaly mode stays as it is.

    Raises:
        ValueError: an empty name, or a limit that is not above 0.
    """

    def __init__(
        self,
        name: str = "operation",
        *,
        anomaly: bool = False,
        slow_above_s: float | None = None,
        logger: logging.Logger | None = None,
        table: Callable[[], RegionTable] | None = None,
        progress: Callable[[], Progress | None] | None = None,
        on_end: Callable[[RegionReport, RegionStatistics, float | None], bool] | None = None,
        session: EventSink | None = None,
        enabled: bool | None = None,
        is_on: Callable[[], bool] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"a region needs a name, got {name!r}")
        if slow_above_s is not None and not slow_above_s > 0:
            raise ValueError(f"slow_above_s={slow_above_s!r} must be above 0 seconds")
        self.name = name
        self.report: RegionReport | None = None
        self._anomaly, self._slow_above_s = anomaly, slow_above_s
        self._logger = logger or _logger
        self._table = table or (lambda: process_regions)
        self._progress, self._on_end = progress, on_end
        self._is_slow = False
        self._session = session
        self._enabled, self._is_on = enabled, is_on

    def __enter__(self) -> debug_context:
        outer = _open.get()
        if self._enabled is False:
            return self
        is_kept = self._enabled or self._is_on is None or self._is_on()
        anomaly = anomaly_detection() if self._anomaly and is_kept else None
        if anomaly is not None:
            anomaly.__enter__()
        entry = _Entry(
            region=self,
            path="/".join([*(entry.region.name for entry in outer), self.name]),
            began_ns=time.perf_counter_ns(),
            cpu_ns=time.process_time_ns(),
            rss_bytes=resident_bytes(),
            cuda_bytes=_cuda_bytes(),
            anomaly=anomaly,
            progress=None if self._progress is None else self._progress(),
            is_kept=is_kept,
        )
        _open.set((*outer, entry))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entries = _open.get()
        place = next((i for i in reversed(range(len(entries))) if entries[i].region is self), None)
        if place is None:
            return
        entry = entries[place]
        _open.set(entries[:place])
        if entry.anomaly is not None:
            entry.anomaly.__exit__(kind, error, trace)
        left = None if self._progress is None else self._progress()
        self.report = report = _report(entry, kind, left)
        if entry.is_kept:
            self._keep(report, error, trace)

    def _keep(self, report: RegionReport, error: BaseException | None, trace: TracebackType | None) -> None:
        row = self._table().add(report)
        if report.error is not None:
            self._logger.warning("%s", report)
        note_region_error(error, trace, report.path, self._session)
        is_told = self._on_end is not None and self._on_end(report, row, self._slow_above_s)
        self._judge(row, is_told=is_told and self._logger is _logger)

    def _judge(self, row: RegionStatistics, *, is_told: bool) -> None:
        """Log once that the average has passed the limit, unless a session has made an event of it."""
        before, limit_s = self._is_slow, self._slow_above_s
        self._is_slow = limit_s is not None and row.running_mean_s > limit_s
        if self._is_slow and not before and not is_told:
            self._logger.warning("%s", slow_message(row, limit_s))


def slow_message(row: RegionStatistics, limit_s: float | None) -> str:
    """Say how long the newest runs through a region take on average, and what the limit is."""
    runs = min(row.count, AVERAGED_RUNS)
    newest = "" if runs == 1 else f"on average over its newest {runs} runs "
    taken = tables.duration(row.running_mean_s)
    return f"Region `{row.path}` is slow: it took {taken} {newest}(limit {tables.duration(limit_s)})"


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _steps(began: Progress | None, ended: Progress | None) -> tuple[int, int] | None:
    """Steps whose update was made in between, and the one under way where it had a backward in between."""
    if began is None or ended is None or ended.step < began.step:
        return None
    before = began.backwards if ended.step == began.step else 0
    last = ended.step if ended.backwards > before else ended.step - 1
    return None if last < began.step else (began.step, last)


def _report(entry: _Entry, kind: type[BaseException] | None, left: Progress | None) -> RegionReport:
    rss_bytes, cuda_bytes = resident_bytes(), _cuda_bytes()
    is_on_cuda = cuda_bytes is not None
    return RegionReport(
        name=entry.region.name,
        path=entry.path,
        duration_s=(time.perf_counter_ns() - entry.began_ns) / 1e9,
        cpu_s=(time.process_time_ns() - entry.cpu_ns) / 1e9,
        rss_delta_bytes=rss_bytes - entry.rss_bytes,
        rss_bytes=rss_bytes,
        cuda_delta_bytes=None if cuda_bytes is None else cuda_bytes - (entry.cuda_bytes or 0),
        cuda_peak_bytes=torch.cuda.max_memory_allocated() if is_on_cuda else None,
        error=None if kind is None else kind.__name__,
        cuda_bytes=cuda_bytes,
        steps=_steps(entry.progress, left),
    )


def _cuda_bytes() -> int | None:
    return torch.cuda.memory_allocated() if torch_memory.cuda_is_initialised() else None


process_regions = RegionTable()
"""Regions that belong to no session."""
