"""OpenTelemetry: a thread that sends metrics at an interval, and events as log records when they come."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from probe import __version__

from ..errors import DashboardError
from .courier import FIRST_WAIT_S
from .families import FamilyReader
from .news import News
from .otlp_messages import LOGS_PATH, METRICS_PATH, logs_request, metrics_request, rejected
from .outlet_thread import OutletThread
from .settings import OtlpPlace, Target

_log = logging.getLogger(__name__)

RECORDS_AT_ONCE: Final = 500


class OtlpThread(OutletThread):
    """Sends to one collector; `start` and `stop` are called once.

    Args:
        place: What to send, and how often.
        target: Where to.
        families: Reads the metrics.
        first_wait_s: See `Courier`.
    """

    def __init__(
        self,
        place: OtlpPlace,
        target: Target,
        families: FamilyReader,
        *,
        first_wait_s: float = FIRST_WAIT_S,
    ) -> None:
        super().__init__("otlp", "otlp", target, first_wait_s=first_wait_s, requests_at_end=2)
        self._place, self._families = place, families
        self._since = time.time()
        self._has_rejected = False

    def offer(self, news: Sequence[News]) -> None:
        """Queue what is wanted; any thread, never blocks."""
        self._waiting.put([each for each in news if each.event.severity in self._place.severities])

    def _run(self) -> None:
        due_at = time.monotonic()
        while not self._stopping.is_set():
            self._send_events()
            if time.monotonic() >= due_at:
                due_at = time.monotonic() + self._place.interval_s
                self._send_metrics()
            self._waiting.wait(max(0.0, due_at - time.monotonic()))
        if self.status.problem is None:
            self._send_events()
            self._send_metrics()

    def _send_events(self) -> None:
        while news := self._waiting.take(RECORDS_AT_ONCE):
            self._send(logs_request(news, now=time.time()), LOGS_PATH)

    def _send_metrics(self) -> None:
        try:
            families = self._families.read()
        except DashboardError as error:
            _log.debug("the store does not give metrics: %s", error)
            return
        self._send(metrics_request(families, now=time.time(), since=self._since), METRICS_PATH)

    def _send(self, body: bytes, path: str) -> None:
        posted = self._courier.deliver(body, path=path, headers=self._headers)
        if posted.problem is None and (count := rejected(posted.body)):
            self._courier.note_dropped(count)
            if not self._has_rejected:
                _log.warning("outlet otlp: the collector has thrown away %d records or points", count)
            self._has_rejected = True

    def _headers(self, body: bytes) -> Mapping[str, str]:
        return {
            **self._target.headers,
            "content-type": "application/json",
            "user-agent": f"nanscope/{__version__}",
        }
