"""One webhook: a queue that never blocks who fills it, and a thread that groups, limits and sends."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from probe import __version__
from probe.wire import Event

from .courier import FIRST_WAIT_S, Courier
from .messages import discord_message, json_message, signature, slack_message
from .news import News
from .settings import Target, Webhook
from .status import OutletStatus
from .waiting_news import WaitingNews

_MINUTE_S: Final = 60.0


class WebhookThread:
    """Sends what it is offered; `start` and `stop` are called once.

    Args:
        hook: What to send, and how often.
        target: Where to.
        page: Address of the page, without the token.
        first_wait_s: See `Courier`.
    """

    def __init__(
        self, hook: Webhook, target: Target, *, page: str, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        self._hook, self._target, self._page = hook, target, page
        self._stopping = threading.Event()
        self._courier = Courier(
            hook.name, hook.kind, target, stopping=self._stopping, first_wait_s=first_wait_s
        )
        self._waiting = WaitingNews(self._courier.note_waiting)
        self._sent_at: deque[float] = deque(maxlen=hook.per_minute)
        self._thread = threading.Thread(target=self._run, name=f"nanscope-hook-{hook.name}", daemon=True)

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
        """Close, and wait until the thread has ended, for one request at most."""
        self.close()
        self._thread.join(self._target.timeout_s + 1)

    def offer(self, news: Sequence[News]) -> None:
        """Queue what the webhook wants; any thread, never blocks."""
        self._waiting.put([each for each in news if self._wants(each.event)])

    def _wants(self, event: Event) -> bool:
        kinds = self._hook.kinds
        return event.severity in self._hook.severities and (not kinds or event.kind in kinds)

    def _run(self) -> None:
        while self._waiting.wait():
            self._stopping.wait(self._hook.group_s)
            self._stopping.wait(self._limit_s())
            if self._stopping.is_set() and self._courier.status.problem is not None:
                return
            self._send(self._waiting.take())

    def _limit_s(self) -> float:
        """Seconds until one more message is allowed."""
        if len(self._sent_at) < self._hook.per_minute:
            return 0.0
        return max(0.0, self._sent_at[0] + _MINUTE_S - time.monotonic())

    def _send(self, news: Sequence[News]) -> None:
        self._sent_at.append(time.monotonic())
        delivery = uuid.uuid4().hex
        self._courier.deliver(self._body(news, delivery), headers=lambda body: self._headers(body, delivery))

    def _body(self, news: Sequence[News], delivery: str) -> bytes:
        if self._hook.kind == "slack":
            return slack_message(news)
        if self._hook.kind == "discord":
            return discord_message(news)
        return json_message(news, delivery=delivery, page=self._page, sent=time.time())

    def _headers(self, body: bytes, delivery: str) -> Mapping[str, str]:
        headers = {
            "content-type": "application/json",
            "user-agent": f"nanscope/{__version__}",
            "x-nanscope-delivery": delivery,
        }
        if self._target.secret is not None:
            timestamp = str(int(time.time()))
            headers["x-nanscope-timestamp"] = timestamp
            headers["x-nanscope-signature"] = signature(self._target.secret, timestamp, body)
        return headers
