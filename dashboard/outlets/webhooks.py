"""One webhook: a queue that never blocks who fills it, and a thread that groups, limits and sends."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from probe import __version__
from probe.wire import Event

from .courier import FIRST_WAIT_S
from .messages import discord_message, json_message, signature, slack_message
from .news import News
from .outlet_thread import OutletThread
from .settings import Target, Webhook

_MINUTE_S: Final = 60.0


class WebhookThread(OutletThread):
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
        super().__init__(hook.name, hook.kind, target, first_wait_s=first_wait_s, requests_at_end=1)
        self._hook, self._page = hook, page
        self._sent_at: deque[float] = deque(maxlen=hook.per_minute)

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
