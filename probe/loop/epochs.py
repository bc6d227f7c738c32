"""Counts epochs, and has memory read where one ends: growth from epoch to epoch shows there.

An epoch is a pass over a DataLoader that ran out while the watched model was trained, the one under way when
the session began too; the loaders of other threads and of evaluations are none of it. Where somebody tells of
epochs, only what is told counts. Used by the session, on the training thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from ..attach.loader_passes import loader_passes
from ..compat.weak_tables import WeakTable
from ..guard import Guard
from ..step.open_step import LogValue
from ..step.step_meters import StepMeters
from .attention import Attention
from .measure_schedule import MeasureSchedule
from .open_passes import EpochPlace, OpenPasses

_PART: Final = "epochs"


class EpochCount(NamedTuple):
    """Epochs that have ended."""

    ended: int = 0
    steps: int = 0
    """Steps up to the end of the newest one, those before the session's first included."""
    newest_steps: int | None = None
    """Steps of the newest one; None where its beginning was not seen."""


class EpochWatch:
    """Follows the passes over DataLoaders of one training loop.

    Args:
        schedule: knows what is to be measured.
        meters: reads memory.
        attention: knows whether what this thread does belongs to the training loop.
        last_step: gives the number of the newest finished step; None before the first.
        log: takes values of the newest step.
        on_end: called with the number of epochs that have ended, where memory is measured.
        guard: isolates what fails.
        first_step: number of the first step.
    """

    def __init__(
        self,
        schedule: MeasureSchedule,
        meters: StepMeters,
        attention: Attention,
        *,
        last_step: Callable[[], int | None],
        log: Callable[[dict[str, LogValue]], None],
        on_end: Callable[[int], None],
        guard: Guard,
        first_step: int = 0,
    ) -> None:
        self._first_step = first_step
        self._schedule, self._meters, self._attention = schedule, meters, attention
        self._last_step, self._log, self._on_end, self._guard = last_step, log, on_end, guard
        self._begun: WeakTable[object, int | None] = WeakTable()
        """Iterators that are under way, and the last step when they began."""
        self._may_be_unknown = True
        """Whether no pass has run out yet that was under way when the session began."""
        self._ended_at: int | None = None
        """Last step of the newest epoch: where two loaders run out together, that is one."""
        self._count = 0
        self.count = EpochCount(steps=first_step)
        """Replaced whole: read on other threads."""
        self._has_word = False
        self._passes = OpenPasses()
        loader_passes.add(self)

    def stop(self) -> None:
        """Follow no more. Idempotent."""
        loader_passes.remove(self)

    def place(self) -> EpochPlace | None:
        """How far the epoch under way is; None where nothing shows it. Any thread."""
        made, count = self._made(), self.count
        place = self._passes.place(made)
        if place is not None or count.newest_steps is None:
            return place
        # Between two epochs, and at the start of one: it is taken to be like the newest.
        return EpochPlace(count.steps, max(count.newest_steps, made - count.steps), True)

    def begin_pass(self, iterator: object) -> None:
        """A pass begins."""
        if not self._attention.is_elsewhere:
            self._guard.run(_PART, self._begin, iterator)

    def end_pass(self, iterator: object) -> None:
        """A pass has run out: an epoch, where steps were made meanwhile."""
        if not self._attention.is_elsewhere:
            self._guard.run(_PART, self._end, iterator)

    def end_epoch(self) -> None:
        """Somebody tells of an epoch's end: from the first time on, DataLoaders count no more."""
        self._guard.run(_PART, self._take_word)

    def _take_word(self) -> None:
        if not self._has_word:
            # The trainers load a batch ahead: their loader may have run out a step ago.
            self._has_word, self._count, self.count = True, 0, EpochCount(steps=self._first_step)
            self._passes.clear()
            self.stop()
        self._note_end()

    def _begin(self, iterator: object) -> None:
        self._begun[iterator] = self._last_step()
        self._passes.begin(iterator, made=self._made())

    def _made(self) -> int:
        last_step = self._last_step()
        return self._first_step if last_step is None else last_step + 1

    def _end(self, iterator: object) -> None:
        self._passes.end(iterator)
        is_whole = iterator in self._begun or self._count > 0
        if iterator not in self._begun:
            if not self._may_be_unknown:
                return
            self._may_be_unknown = False
        began_at, step = self._begun.pop(iterator, None), self._last_step()
        if step is None or step in (began_at, self._ended_at):
            return
        self._ended_at = step
        self._note_end(is_whole=is_whole)

    def _note_end(self, *, is_whole: bool = True) -> None:
        self._count += 1
        steps, before = self._made(), self.count
        newest = steps - before.steps if is_whole and steps > before.steps else None
        self.count = EpochCount(self._count, steps, newest)
        values = {"epoch": float(self._count)}
        if self._schedule.settings.features.memory:
            values |= self._meters.read_memory_of_epoch()
            self._on_end(self._count)
        self._log({name: partial(float, value) for name, value in values.items()})
