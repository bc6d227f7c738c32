"""The line above the tiles: epoch, step of steps, percentage, time left. Pure: data in, short texts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.training_progress import TRAINING, TrainingProgress

from ...store.protocol import StoredDocument

_STALE_S: Final = 5.0
"""A newest step that is older, and four steps' time older, makes the time left one of that moment."""


_MANY_HOURS: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressLine:
    """What the line says."""

    text: str
    fraction: float | None = None
    """Done, 0-1; None where the whole is not known."""


def newest_progress(documents: Sequence[StoredDocument]) -> TrainingProgress | None:
    """Return the newest of a rank's `progress` documents; None without one, or where it does not decode."""
    if not documents:
        return None
    try:
        return read_body(documents[-1].document, TrainingProgress)
    except WireError:
        return None


def progress_line(
    progress: TrainingProgress | None,
    *,
    last_step: int | None,
    step_s: float | None,
    age_s: float | None,
    is_running: bool,
) -> ProgressLine | None:
    """Return the line; None where nothing but the number of the step is known, which a tile shows.

    Args:
        progress: as it was written last.
        last_step: newest step of the run that is known here; often newer than `progress`.
        step_s: seconds of a recent step.
        age_s: how long ago the newest step was.
        is_running: whether the run has not ended: else no time is left.
    """
    if progress is None:
        return None
    done = None if last_step is None else progress.steps_before + last_step + 1
    parts = [_epochs(progress), _phase(progress) if is_running else ""]
    fraction, left_s = None, None
    if progress.total_steps and done is not None:
        about = "about " if progress.is_estimate else ""
        parts.append(f"step {done:,} of {about}{progress.total_steps:,}")
        fraction = min(1.0, done / progress.total_steps)
        left_s = None if step_s is None else max(0, progress.total_steps - done) * step_s
    elif progress.bar is not None:
        name = f"\u201c{progress.bar.label}\u201d" if progress.bar.label else "progress bar"
        parts.append(f"{name}: {progress.bar.done:,.10g} of {progress.bar.total:,.10g}")
        fraction = progress.bar.done / progress.bar.total
        if progress.bar.done:
            left_s = progress.bar.elapsed_s * (progress.bar.total / progress.bar.done - 1)
    if fraction is not None:
        parts.append(f"{fraction * 100:.0f} %" if fraction in (0, 1) else f"{fraction * 100:.1f} %")
    if is_running and left_s:
        parts.append(f"about {duration(left_s)} left{_as_of(age_s, step_s)}")
    text = " \u00b7 ".join(part for part in parts if part)
    return ProgressLine(text=text, fraction=fraction) if text else None


def _epochs(progress: TrainingProgress) -> str:
    if progress.epoch is None:
        return f"{progress.total_epochs:,} epochs" if progress.total_epochs is not None else ""
    total = "" if progress.total_epochs is None else f" of {progress.total_epochs:,}"
    return f"epoch {progress.epoch:.6g}{total}"


def _phase(progress: TrainingProgress) -> str:
    return "" if progress.phase == TRAINING else progress.phase


def _as_of(age_s: float | None, step_s: float | None) -> str:
    """A time left that no newer step bears out any more says how old it is."""
    if age_s is None or age_s <= max(_STALE_S, 4 * (step_s or 0.0)):
        return ""
    return f", as of {duration(age_s)} ago"


def duration(seconds: float) -> str:
    """Return a time in its two largest units."""
    whole = max(1, round(seconds))
    if whole >= _MANY_HOURS * 3600:
        return f"{whole / 86_400:.1f} days"
    for size, unit, smaller, small_unit in ((3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"
