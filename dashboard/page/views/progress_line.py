"""The line above the tiles: epoch, step of steps, percentage, time left. Pure: data in, short texts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

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
    if not is_running:
        progress = _without_unbegun(progress, last_step)
    parts = [_epochs(progress), _phase(progress) if is_running else ""]
    share = _share(progress, last_step, step_s)
    parts += share.texts
    if share.done is not None:
        parts.append(f"{share.done * 100:.0f} %" if share.done in (0, 1) else f"{share.done * 100:.1f} %")
    if is_running and share.left_s:
        parts.append(f"about {duration(share.left_s)} left{share.of}{_as_of(age_s, step_s)}")
    text = " \u00b7 ".join(part for part in parts if part)
    return ProgressLine(text=text, fraction=share.done) if text else None


def _without_unbegun(progress: TrainingProgress, last_step: int | None) -> TrainingProgress:
    """Leave out an epoch before whose first step a run was killed; one that ends does so itself."""
    began, epoch = progress.epoch_began, progress.epoch
    if began is None or last_step is None or last_step + 1 > began:
        return progress
    # Of a known number of epochs the last is never counted beyond.
    is_counted = epoch is not None and epoch > 1 and progress.total_epochs is None
    epoch = epoch - 1 if is_counted and epoch is not None else epoch
    return msgspec.structs.replace(progress, epoch=epoch, epoch_began=None, epoch_steps=None)


class _Share(NamedTuple):
    """How much of a whole is done."""

    texts: tuple[str, ...] = ()
    done: float | None = None
    """0-1; None where no whole is known."""
    left_s: float | None = None
    of: str = ""
    """Of what the seconds are left, where that is not the training."""


def _share(progress: TrainingProgress, last_step: int | None, step_s: float | None) -> _Share:
    """Of the training where its length is known, else of tqdm's outermost bar, else of the epoch."""
    done, total = None if last_step is None else progress.steps_before + last_step + 1, progress.total_steps
    if total and done is not None:
        text = f"step {done:,} of {_about(progress.is_estimate)}{total:,}"
        return _Share((text,), min(1.0, done / total), _seconds(total - done, step_s))
    epoch, bar = _share_of_epoch(progress, last_step, step_s), progress.bar
    if bar is None:
        return epoch
    name = f"\u201c{bar.label}\u201d" if bar.label else "progress bar"
    text = f"{name}: {bar.done:,.10g} of {bar.total:,.10g}"
    left_s = bar.elapsed_s * (bar.total / bar.done - 1) if bar.done else None
    return _Share((*epoch.texts, text), bar.done / bar.total, left_s)


def _share_of_epoch(progress: TrainingProgress, last_step: int | None, step_s: float | None) -> _Share:
    began, steps = progress.epoch_began, progress.epoch_steps
    if began is None or not steps or last_step is None:
        return _Share()
    done = min(max(0, last_step + 1 - began), steps)
    text = f"step {done:,} of {_about(progress.is_epoch_estimate)}{steps:,} of the epoch"
    return _Share((text,), done / steps, _seconds(steps - done, step_s), " of the epoch")


def _seconds(steps: int, step_s: float | None) -> float | None:
    return None if step_s is None else max(0, steps) * step_s


def _about(is_estimate: bool) -> str:
    return "about " if is_estimate else ""


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
