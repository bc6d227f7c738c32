"""Says on the timeline that records of this run are lost, or were evicted before anyone could have read them.

Asked by the recorder's thread once a second. Loads no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...detectors.advice import advice_for
from ...guard import Guard
from ...wire import Event, Evidence, RunStart, Severity
from ...wire.events import make_event
from .recorder import Recorder

_PERIOD_S: Final = 1.0
_FACTOR: Final = 10
"""After the first event, the next one comes when so many times as many are lost."""


class GapWatch:
    """One rank's lost records, as `data_gap` events.

    Args:
        start: of the rank.
        model: name of the naming root.
        recorder: whose losses are counted.
        last_step: tells the newest finished step; None before the first.
    """

    def __init__(
        self,
        start: RunStart,
        model: str,
        *,
        recorder: Recorder,
        last_step: Callable[[], int | None],
    ) -> None:
        # Of its own: a guard's clock is that of one thread, and this is the recorder's.
        self._guard = Guard()
        self._start, self._model, self._recorder, self._last_step = start, model, recorder, last_step
        self._lost_limit = self._evicted_limit = 1
        self.period_s = _PERIOD_S

    def look(self) -> list[Event]:
        """Return an event where more is lost than was told."""
        return self._guard.run_brief("data gap", self._news) or []

    def _news(self) -> list[Event]:
        events = []
        if (lost := self._recorder.lost_before_write) >= self._lost_limit:
            self._lost_limit = _FACTOR * lost
            why = self._recorder.failed or "training was faster than the disk"
            text = f"{lost:,} records of this run could not be written and are lost: {why}"
            events.append(self._event("lost", "warning", text, lost))
        if (evicted := self._recorder.evicted) >= self._evicted_limit:
            self._evicted_limit = _FACTOR * evicted
            text = (
                f"The journal has reached its cap: the oldest {evicted:,} frames were deleted from it. "
                "What a dashboard has stored already is not affected; events are never deleted"
            )
            events.append(self._event("evicted", "info", text, evicted))
        return events

    def close(self) -> list[Event]:
        """Return what is left to tell."""
        return self.look()

    def _event(self, subject: str, severity: Severity, message: str, count: int) -> Event:
        return make_event(
            self._start,
            self._model,
            "data_gap",
            subject,
            step=self._last_step() or 0,
            time=time.time(),
            severity=severity,
            message=message[:4000],
            evidence=Evidence(value=float(count)),
            advice=advice_for("data_gap"),
            ended=True,
        )
