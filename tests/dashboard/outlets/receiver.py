"""A real HTTP server on a free port that keeps what is posted to it, and answers as it is asked to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hangs: bool = False
    """Takes the request, and says nothing until the receiver is closed."""


class Receiver:
    """`answers` are given in order, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[Request] = []
        self._answers = list(answers) or [Answer()]
        self._closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._take(self)

            do_GET = do_POST  # noqa: N815 - what http.server calls

            def log_message(self, *args: object) -> None:
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append(Request(handler.path, headers, body))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer.hangs:
            self._closing.wait(30)
            return
        handler.send_response(answer.status)
        for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.body)

    def wait(self, count: int) -> list[Request]:
        wait_for(lambda: len(self.requests) >= count)
        return self.requests

    @contextmanager
    def _running(self) -> Iterator[Receiver]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._closing.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)


def receiving(*answers: Answer) -> Any:
    """`with receiving(Answer(500), Answer(204)) as receiver:`."""
    return Receiver(*answers)._running()


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until, "it does not happen"
        time.sleep(0.01)
