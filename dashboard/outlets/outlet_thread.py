"""What webhooks and OpenTelemetry have in common: a queue that never blocks who fills it, and a thread."""

from __future__ import annotations

import threading
from typing import Literal

from .courier import Courier
from .settings import Target
from .status import OutletStatus
from .waiting_news import WaitingNews


class OutletThread:
    """Sends what waits, on a thread of its own; `start` and `stop` are called once.

    Args:
        name: what log, `/health` and `/metrics` call it.
        kind: of which kind it is.
        target: where to.
        first_wait_s: see `Courier`.
        requests_at_end: most requests that are made once it is to end.
    """

    def __init__(
        self,
        name: str,
        kind: Literal["json", "slack", "discord", "otlp"],
        target: Target,
        *,
        first_wait_s: float,
        requests_at_end: int,
    ) -> None:
        self._target, self._requests_at_end = target, requests_at_end
        self._stopping = threading.Event()
        self._courier = Courier(name, kind, target, stopping=self._stopping, first_wait_s=first_wait_s)
        self._waiting = WaitingNews(self._courier.note_waiting)
        self._thread = threading.Thread(target=self._run, name=f"nanscope-{name}", daemon=True)

    def _run(self) -> None:
        """Send what waits until there is nothing more to come."""
        raise NotImplementedError

    @property
    def status(self) -> OutletStatus:
        """A snapshot; any thread."""
        return self._courier.status

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Have the thread send what waits, unless the newest request failed, and end."""
        self._stopping.set()
        self._waiting.close()

    def stop(self) -> None:
        """Close, and wait until the thread has ended, for its last requests at most."""
        self.close()
        self._thread.join(self._requests_at_end * self._target.timeout_s + 1)
