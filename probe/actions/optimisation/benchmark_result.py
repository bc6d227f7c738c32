"""What `benchmark_optimizations` returns: a row for each mode, and the one it recommends. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..analysis import tables
from ..analysis.call_results import Result
from ..analysis.mapped_result import MappedResult
from .differences import Difference
from .intervals import Interval
from .modes import OptimizationMode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModeResult(MappedResult):
    """One mode. `result["error"]` is there only where it failed."""

    mode: OptimizationMode
    total_time: float | None = None
    """Seconds of all timed steps together; None where the mode failed."""
    step_s: float | None = None
    """Median of a step in the steady state."""
    first_step_s: float | None = None
    """Of the first step: what it takes longer is compilation, and whatever else is done once."""
    speedup: float | None = None
    """Median over pairs of a plain step and one in the mode; None of mode `none`."""
    speedup_low: float | None = None
    """Lower end of the speed-up's interval."""
    speedup_high: float | None = None
    peak_bytes: int | None = None
    """What a step allocates at most over what was there before it; None where it was not seen."""
    memory_saved: float | None = None
    """Fraction of mode `none`'s `peak_bytes` that is not needed; negative where more is."""
    difference: Difference | None = None
    """From mode `none`, from the same weights and batch."""
    is_within: bool | None = None
    """Whether the difference is within its limits; None where it says nothing of the mode."""
    note: str | None = None
    """What a reader of the numbers has to know."""
    error: str | None = None
    """Why the mode does not work here."""

    def __post_init__(self) -> None:
        MappedResult.__post_init__(self)
        if self.error is None:
            dict.pop(self, "error", None)

    @property
    def compile_s(self) -> float | None:
        """What the first step took longer than one in the steady state."""
        if self.first_step_s is None or self.step_s is None:
            return None
        return max(self.first_step_s - self.step_s, 0.0)

    @property
    def speedup_interval(self) -> Interval | None:
        """Median speed-up and its interval."""
        if self.speedup is None or self.speedup_low is None or self.speedup_high is None:
            return None
        return Interval(self.speedup, self.speedup_low, self.speedup_high)

    @property
    def is_faster(self) -> bool:
        """Whether the whole interval of the speed-up is above 1."""
        return self.speedup_low is not None and self.speedup_low > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationBenchmark(Result):
    """All modes that were compared. Reads like a dictionary of them: `result["amp"]`, `result.items()`."""

    model: str
    device: str
    pairs: int
    """Timed steps of each mode."""
    recommended: OptimizationMode
    why: str
    results: dict[OptimizationMode, ModeResult]

    def __getitem__(self, mode: OptimizationMode) -> ModeResult:
        return self.results[mode]

    def __iter__(self) -> Any:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def items(self) -> Any:
        """Modes and their results."""
        return self.results.items()

    def keys(self) -> Any:
        """Modes."""
        return self.results.keys()

    def values(self) -> Any:
        """Results."""
        return self.results.values()

    def __str__(self) -> str:
        """The recommendation, a row for each mode, and what failed."""
        header = ("mode", "step", "first step", "speed-up", "interval", "memory", "saved", *_DIFFERENCES)
        rows = [_row(one) for one in self.results.values() if one.error is None]
        notes = [f"{one.mode}: {one.note}" for one in self.results.values() if one.note]
        failed = [f"{one.mode} does not work here: {one.error}" for one in self.results.values() if one.error]
        title = f"optimisations of {self.model} on {self.device}, {self.pairs} pairs of steps each"
        return "\n".join(
            [
                title,
                f"recommended: {self.recommended}. {self.why}",
                "",
                *tables.table(header, rows),
                *notes,
                *failed,
            ]
        )


_DIFFERENCES = ("output", "loss", "gradients", "numbers")


def _row(one: ModeResult) -> tuple[str, ...]:
    interval, found = one.speedup_interval, one.difference
    differences = (
        ("-", "-", "-")
        if found is None
        else (_percent(found.output), _percent(found.loss), _percent(found.gradient))
    )
    return (
        one.mode,
        tables.duration(one.step_s),
        tables.duration(one.first_step_s),
        "-" if one.speedup is None else f"{one.speedup:.2f}x",
        "-" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}",
        tables.size(one.peak_bytes),
        "-" if one.memory_saved is None else f"{one.memory_saved:.0%}",
        *differences,
        {True: "within limits", False: "OUT OF LIMITS", None: "-"}[one.is_within],
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{tables.number(100 * value)} %"
