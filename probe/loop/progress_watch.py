"""Writes how far a training is, on the recorder's thread: what was told, what was counted, what tqdm shows.

Reads counters only; a step costs nothing. Nothing is guessed: a total that nobody has told is not known.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ..actions.progress_board import MAX_PHASE, ProgressBoard
from ..guard import Guard, let_pass
from ..threads.watchdog import pulse
from ..wire import Document
from ..wire.documents import make_document
from ..wire.training_progress import EVALUATION, KIND, TRAINING, BarState, TrainingProgress
from .epochs import EpochCount
from .open_passes import EpochPlace

PERIOD_S: Final = 1.0
_SHARE: Final = 0.005
"""What has only gone on is written when so large a part of the time has passed: 2,000 times in a week."""
_WINDOW: Final = 30
"""Looks over which the time of a step is taken."""


class ProgressWatch:
    """Progress of one session; a `Watch` of the recorder.

    Args:
        board: what was told.
        last_step: number of the newest finished step; None before the first.
        epochs: what was counted.
        place: how far the epoch under way is.
        clock: monotonic seconds.
        first_step: number of the session's first step.
    """

    def __init__(
        self,
        board: ProgressBoard,
        *,
        last_step: Callable[[], int | None],
        epochs: Callable[[], EpochCount],
        place: Callable[[], EpochPlace | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        first_step: int = 0,
    ) -> None:
        self._first_step = first_step
        self._board, self._last_step, self._epochs, self._clock = board, last_step, epochs, clock
        self._place, self._guard = place, Guard()
        self._began_s = clock()
        self._looks: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._evaluations = 0
        self._written: TrainingProgress | None = None
        self._written_s = -math.inf

    @property
    def period_s(self) -> float:
        """Seconds until the next look."""
        return PERIOD_S

    def look(self) -> Sequence[Document]:
        """Return the document, where there is something new to say."""
        return self._guard.run("progress", self._look) or ()

    def close(self) -> Sequence[Document]:
        """Return the last one, where there was one before."""
        return self._guard.run("progress", self._close) or ()

    def _look(self) -> Sequence[Document]:
        now_s = self._clock()
        found = self._state(now_s)
        if self._written is None and not _says_more_than_a_step(found):
            return ()
        has_gone_on = now_s - self._written_s >= _SHARE * (now_s - self._began_s)
        if found == self._written or not (has_gone_on or _differs(found, self._written)):
            return ()
        return self._write(found, now_s)

    def _close(self) -> Sequence[Document]:
        now_s = self._clock()
        found = self._state(now_s)
        if self._written is None and not _says_more_than_a_step(found):
            return ()
        found = msgspec.structs.replace(found, ended=True, seconds_per_step=None)
        return self._write(self._without_unbegun(found), now_s)

    def _without_unbegun(self, found: TrainingProgress) -> TrainingProgress:
        """Leave out an epoch that would have come next: at the end it has no step."""
        last, epochs = self._last_step(), self._epochs()
        if not epochs.ended or last is None or last + 1 > epochs.steps:
            return found
        told = self._board.epoch
        return msgspec.structs.replace(
            found,
            epoch=float(epochs.ended) if told is None else told,
            epoch_began=None,
            epoch_steps=None,
            is_epoch_estimate=False,
        )

    def _write(self, found: TrainingProgress, now_s: float) -> Sequence[Document]:
        self._written, self._written_s = found, now_s
        return [make_document(found, kind=KIND, key="", step=self._last_step(), time=time.time())]

    def _state(self, now_s: float) -> TrainingProgress:
        board, last = self._board, self._last_step()
        made = self._first_step if last is None else last + 1
        before, epochs, place = board.steps_before(), self._epochs(), self._place()
        total, is_estimate = _total_steps(board, before or self._first_step, epochs, place)
        return TrainingProgress(
            step=None if last is None else before + made,
            steps_before=before,
            total_steps=total,
            is_estimate=is_estimate,
            epoch=_epoch(board, epochs, place),
            total_epochs=board.total_epochs,
            epoch_began=None if place is None else place.began,
            epoch_steps=None if place is None else place.steps,
            is_epoch_estimate=place is not None and place.is_estimate,
            phase=self._phase(made),
            loss=_number(board.loss),
            learning_rate=_number(board.learning_rate),
            seconds_per_step=self._seconds_per_step(now_s, made),
            bar=_outermost_bar(),
        )

    def _phase(self, made: int) -> str:
        """What was told; else an evaluation, where the model was called for one and no step was made."""
        evaluations, self._evaluations = self._evaluations, pulse.evaluations
        if self._board.phases:
            return self._board.phases[-1]
        has_stepped = not self._looks or self._looks[-1][1] != made
        return EVALUATION if pulse.evaluations > evaluations and not has_stepped else TRAINING

    def _seconds_per_step(self, now_s: float, made: int) -> float | None:
        self._looks.append((now_s, made))
        first_s, first = self._looks[0]
        return (now_s - first_s) / (made - first) if made > first else None


def _says_more_than_a_step(found: TrainingProgress) -> bool:
    return msgspec.structs.replace(found, step=None, seconds_per_step=None) != TrainingProgress()


def _differs(found: TrainingProgress, written: TrainingProgress | None) -> bool:
    """Whether more than the place in the same epoch and phase is new."""
    if written is None:
        return True
    same = ("steps_before", "total_steps", "epoch", "total_epochs", "epoch_began", "epoch_steps", "phase")
    return any(getattr(found, name) != getattr(written, name) for name in same)


def _total_steps(
    board: ProgressBoard, before: int, epochs: EpochCount, place: EpochPlace | None
) -> tuple[int | None, bool]:
    """All steps, and whether that is an estimate: each epoch that is left is taken to be like the newest."""
    if board.total_steps is not None or board.total_epochs is None:
        return board.total_steps, False
    # The epochs of a resumed training, before this session, are not counted here.
    if before:
        return None, False
    left = board.total_epochs - epochs.ended
    if not epochs.ended and place is not None:
        return place.began + left * place.steps, left > 1 or place.is_estimate
    if not epochs.ended or epochs.newest_steps is None:
        return None, False
    return (None, False) if left < 0 else (epochs.steps + left * epochs.newest_steps, left > 0)


def _epoch(board: ProgressBoard, epochs: EpochCount, place: EpochPlace | None) -> float | None:
    if board.epoch is not None:
        return board.epoch
    if not epochs.ended:
        return None if board.total_epochs is None and place is None else 1.0
    current = epochs.ended + 1
    return float(current if board.total_epochs is None else min(current, board.total_epochs))


def _number(value: float | None) -> float | str | None:
    """JSON has no NaN and no Inf: those go as text."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _outermost_bar() -> BarState | None:
    """The oldest tqdm bar that is open; None where that has no total, or tqdm is not loaded."""
    kind: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    try:
        bars = [bar for bar in list(getattr(kind, "_instances", ())) if not getattr(bar, "disable", True)]
    except RuntimeError as error:
        let_pass(error)
        return None  # another thread opens one
    bars = [bar for bar in bars if isinstance(getattr(bar, "start_t", None), float)]
    if not bars:
        return None
    bar = min(bars, key=lambda one: one.start_t)
    total, done = _finite(getattr(bar, "total", None)), _finite(getattr(bar, "n", None))
    if not 0 <= done <= total or not total:
        return None
    label = str(getattr(bar, "desc", "") or "").strip().removesuffix(":")[:MAX_PHASE]
    elapsed_s = max(0.0, time.time() - bar.start_t)
    return BarState(label=label, done=done, total=total, elapsed_s=elapsed_s)


def _finite(value: Any) -> float:
    """A number as it is, anything else as NaN, which compares with nothing."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if is_number else math.nan
