"""Says on the timeline what of this run is lost: records, evicted frames, values under too many names.

Asked by the recorder's thread once a second. Loads no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ...detectors.advice import advice_for
from ...detectors.cause_advice import FREE_SPACE, FULL_JOURNAL, KEPT_FOLDER
from ...guard import Guard
from ...own_files import closed_by_script
from ...wire import Event, Evidence, Gap, RunStart, Severity
from ...wire.events import make_event
from ...wire.records import MAX_SCALAR_NAME
from .recorder import Recorder
from .series_names import MAX_LOGGED_NAMES, SeriesNames

_PERIOD_S: Final = 1.0
_FIXED_NAMES: Final = (
    "Give `run.log` a fixed set of short names: what changes from step to step belongs into the value, not "
    "into the name.",
)
_OWN_FILES: Final = (
    "Have the script close only the files that it has opened: others may belong to a library.",
)
_FACTOR: Final = 10
"""After the first event, the next one comes when so many times as many are lost."""
_TEXT_LIMIT: Final = 1000
"""Room for it is kept on a full disk: 16 KiB, for several states of it."""


@dataclass(slots=True, kw_only=True)
class _Block:
    """A time in which the journal could not be written."""

    why: str
    step: int
    """The newest finished one when it was noticed."""
    time: float
    """UNIX seconds of that."""
    lost_before: int
    seq: int
    """The number that the next metrics record gets."""
    told_limit: int = 1
    """So many lost records are worth another word."""


class GapWatch:
    """One rank's lost records, as `data_gap` events.

    Args:
        start: of the rank.
        model: name of the naming root.
        recorder: whose losses are counted.
        last_step: tells the newest finished step; None before the first.
        names: of the logged series; None where nothing is logged.
    """

    def __init__(
        self,
        start: RunStart,
        model: str,
        *,
        recorder: Recorder,
        last_step: Callable[[], int | None],
        names: SeriesNames | None = None,
    ) -> None:
        # Of its own: a guard's clock is that of one thread, and this is the recorder's.
        self._guard = Guard()
        self._start, self._model, self._recorder, self._last_step = start, model, recorder, last_step
        self._names = names or SeriesNames()
        # What an earlier member of the run has lost was told by its own watch.
        self._lost_limit = _FACTOR * recorder.lost_before_write or 1
        self._evicted_limit = _FACTOR * recorder.evicted or 1
        self._left_out = 0
        """Values without a name of their own, as many as were told."""
        self._has_told_of_cuts = self._is_closing = False
        self._is_blocked = False
        self._closed_before = len(closed_by_script())
        self._block: _Block | None = None
        self.period_s = _PERIOD_S

    def look(self) -> list[Event | Gap]:
        """Return an event where more is lost than was told."""
        return self._guard.run_brief("data gap", self._news) or []

    def close(self) -> list[Event | Gap]:
        """Return what is left to tell."""
        self._is_closing = True
        return self.look()

    def last_words(self) -> list[Event | Gap]:
        """Return what is to be told once nothing more can be written: what is lost is known then."""
        return self._guard.run_brief("data gap", self._last_news) or []

    def _news(self) -> list[Event | Gap]:
        return [
            *self._news_of_removals(),
            *self._news_of_closed_files(),
            *self._news_of_block(),
            *self._news_of_losses(),
            *self._news_of_evictions(),
            *self._news_of_names(),
        ]

    def _last_news(self) -> list[Event | Gap]:
        if self._block is None and self._recorder.blocked is not None and self._recorder.lost_before_write:
            self._block = self._begin(self._recorder.blocked)
        return self._end_block() if self._block is not None else self._news_of_losses()

    # -- a journal that cannot be written

    def _news_of_block(self) -> list[Event | Gap]:
        why = self._recorder.blocked
        # A failure that is over by the next look has cost nothing.
        was_blocked, self._is_blocked = self._is_blocked, why is not None
        if why is None:
            return self._end_block() if self._block is not None else []
        if self._block is None:
            if not was_blocked:
                return []
            self._block = self._begin(why)
            return self._state_of(self._block)
        if self._lost_since(self._block) >= self._block.told_limit:
            return self._state_of(self._block)
        return []

    def _begin(self, why: str) -> _Block:
        return _Block(
            why=why,
            step=self._last_step() or 0,
            time=time.time(),
            lost_before=self._recorder.lost_before_write,
            seq=self._recorder.metrics_end,
        )

    def _lost_since(self, block: _Block) -> int:
        return self._recorder.lost_before_write - block.lost_before

    def _end_block(self) -> list[Event | Gap]:
        block, self._block = self._block, None
        assert block is not None
        told = self._state_of(block, is_over=True)
        self._recorder.forget_lost_steps()
        return told

    def _state_of(self, block: _Block, *, is_over: bool = False) -> list[Event | Gap]:
        """The event of a block as it is now, and the hole that it has made so far."""
        lost, now = self._lost_since(block), time.time()
        block.told_limit = max(_FACTOR * lost, 1)
        self._lost_limit = max(self._lost_limit, _FACTOR * self._recorder.lost_before_write)
        last_step = max(self._last_step() or 0, block.step)
        if is_over:
            head = f"Nothing could be written for {max(now - block.time, 0.0):,.0f} s"
        else:
            head = f"Nothing can be written, {self._recorder.waiting:,} records wait in memory"
        count = f"{lost:,} records are lost" if lost else "nothing is lost" + ("" if is_over else " yet")
        event = self._event(
            "blocked", "warning", f"{head}, and {count}: {block.why}", lost, block, advice=_of_disk(lost)
        )
        told: list[Event | Gap] = [
            msgspec.structs.replace(event, last_step=last_step, ended=is_over, time=block.time)
        ]
        if lost:
            first, last = self._recorder.lost_steps or (None, None)
            told.append(
                Gap(
                    stream="metrics",
                    first_seq=block.seq,
                    end_seq=block.seq,
                    reason=f"could not be written: {block.why}"[:_TEXT_LIMIT],
                    time=now,
                    lost=lost,
                    first_step=first,
                    last_step=last,
                )
            )
        return told

    # -- what else is lost

    def _news_of_losses(self) -> list[Event | Gap]:
        lost = self._recorder.lost_before_write
        if lost < self._lost_limit or self._block is not None:
            return []
        self._lost_limit = _FACTOR * lost
        why = self._recorder.failed or "training was faster than the disk"
        text = f"{lost:,} records of this run could not be written and are lost: {why}"
        return [self._event("lost", "warning", text, lost, advice=_of_disk(lost))]

    def _news_of_removals(self) -> list[Event | Gap]:
        events: list[Event | Gap] = []
        while self._recorder.removals:
            count = self._recorder.removals.pop(0)
            text = (
                "The run's folder was removed, or its disk unmounted, while the training ran. It held "
                f"{count:,} records, which are lost unless a dashboard has stored them; recording continues "
                "in a new folder"
            )
            events.append(self._event(f"removed {count}", "warning", text, count, advice=KEPT_FOLDER))
        return events

    def _news_of_closed_files(self) -> list[Event | Gap]:
        """Nothing is lost by it; but the next thing that such a script does may be to close them again."""
        names = closed_by_script()[self._closed_before :]
        if not names:
            return []
        self._closed_before += len(names)
        text = (
            f"The script closed {len(names)} files that the recording had open "
            f"({', '.join(f'`{name}`' for name in sorted(set(names)))}). They were opened again: recording "
            "continues, and nothing was written to files of the script"
        )
        return [self._event("closed files", "info", text, len(names), advice=_OWN_FILES)]

    def _news_of_evictions(self) -> list[Event | Gap]:
        evicted = self._recorder.evicted
        if evicted < self._evicted_limit:
            return []
        self._evicted_limit = _FACTOR * evicted
        text = (
            f"The journal has reached its cap: the oldest {evicted:,} frames were deleted from it. "
            "What a dashboard has stored already is not affected; events are never deleted"
        )
        return [self._event("evicted", "info", text, evicted, advice=FULL_JOURNAL)]

    def _news_of_names(self) -> list[Event | Gap]:
        events: list[Event | Gap] = []
        if self._names.cut and not self._has_told_of_cuts:
            self._has_told_of_cuts = True
            text = (
                f"`run.log` got a name of more than {MAX_SCALAR_NAME:,} characters. Longer names are cut, "
                "and a checksum stands at their end"
            )
            events.append(self._event("cut names", "info", text, self._names.cut, advice=_FIXED_NAMES))
        left_out = self._names.left_out
        if left_out > self._left_out and (left_out >= _FACTOR * self._left_out or self._is_closing):
            self._left_out = left_out
            text = (
                f"`run.log` got more than {MAX_LOGGED_NAMES:,} different names. {left_out:,} values under "
                "further names are not recorded; everything else is"
            )
            events.append(self._event("too many names", "warning", text, left_out, advice=_FIXED_NAMES))
        return events

    def _event(
        self,
        subject: str,
        severity: Severity,
        message: str,
        count: int,
        block: _Block | None = None,
        *,
        advice: Sequence[str],
    ) -> Event:
        return make_event(
            self._start,
            self._model,
            "data_gap",
            subject,
            step=(self._last_step() or 0) if block is None else block.step,
            time=time.time(),
            severity=severity,
            message=message[:_TEXT_LIMIT],
            evidence=Evidence(value=float(count)),
            advice=list(advice),
            ended=True,
        )


def _of_disk(lost: int) -> list[str]:
    return [*(advice_for("data_gap") if lost else ()), FREE_SPACE]
