"""All outlets of a running server that send: one thread that looks for news, and one for each outlet."""

from __future__ import annotations

import logging
import threading
from typing import Final

from ..errors import DashboardError
from ..store.protocol import Store
from .families import FamilyReader
from .news import NewsReader
from .otlp import OtlpThread
from .settings import Outlets
from .status import OutletStatus
from .webhooks import WebhookThread

_log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0


class RunningOutlets:
    """Sends until `stop`; starts nothing where nothing is configured.

    Args:
        outlets: What to send where.
        store: Has the runs; it is looked at, and asked for nothing while it has nothing new.
        families: Reads the metrics.
        page: Address of the page, without the token.
    """

    def __init__(self, outlets: Outlets, store: Store, families: FamilyReader, *, page: str) -> None:
        self._store = store
        self._threads: list[WebhookThread | OtlpThread] = [
            WebhookThread(hook, target, page=page) for hook, target in outlets.webhooks
        ]
        if outlets.otlp is not None:
            self._threads.append(OtlpThread(*outlets.otlp, families))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nanscope-outlets", daemon=True)

    def start(self) -> None:
        """Start the threads; events that are in the store already are no news."""
        if not self._threads:
            return
        self._news = NewsReader(self._store)
        for each in self._threads:
            each.start()
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and stop the threads; waits for one request of each outlet at most."""
        if not self._threads:
            return
        self._stopping.set()
        self._thread.join(5.0)
        for each in self._threads:
            each.close()
        for each in self._threads:
            each.stop()

    def statuses(self) -> list[OutletStatus]:
        """What is known of each; any thread."""
        return [each.status for each in self._threads]

    def notices(self) -> list[str]:
        """A line for the page about each outlet whose newest request failed."""
        return [
            f"Outlet {status.name}: {status.problem}. {status.waiting:,} events waiting, "
            f"{status.failed:,} requests abandoned."
            for status in self.statuses()
            if status.problem is not None
        ]

    def _run(self) -> None:
        is_answered = True
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(LOOK_EVERY_S)
            try:
                news = self._news.take()
            except DashboardError as error:
                if is_answered:
                    _log.warning("the store does not tell outlets what is new: %s", error)
                is_answered = False
                continue
            is_answered = True
            for each in self._threads:
                each.offer(news)
