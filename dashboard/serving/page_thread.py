"""uvicorn on a thread of its own, so that the page shares its process with the store.

Called by the server; never `Dash.run`, which would start a subprocess away from the store.
"""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any, Final

import uvicorn

from ..errors import DashboardError
from .page_connections import PageConnection

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
MAX_CLIENT_FRAME: Final = 64 * 1024
"""Largest WebSocket message that a page may send."""


class PageThread:
    """Serves an ASGI app on a bound, listening socket until `stop`; the socket stays the caller's.

    Args:
        app: ASGI app.
        listener: Bound and listening.
        certificate: PEM file with which it speaks TLS; None speaks without.
        key: Of the certificate; None where its file has it.
    """

    def __init__(
        self, app: Any, listener: socket.socket, *, certificate: Path | None = None, key: Path | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=PageConnection,
            log_config=None,
            # Else there is a warning for each connection on which no HTTP is spoken.
            log_level="error",
            access_log=False,
            server_header=False,
            ws_max_size=MAX_CLIENT_FRAME,
            timeout_graceful_shutdown=1,
            # Anybody on this machine could make up the address of who asks; a declared proxy is believed by
            # the gate.
            proxy_headers=False,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._listener = listener
        self._thread = threading.Thread(target=self._run, name="nanscope-page", daemon=True)

    def start(self) -> None:
        """Return once the page answers.

        Raises:
            DashboardError: it does not within `START_TIMEOUT_S`.
        """
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise DashboardError("The page did not start; the log above says why.")
            time.sleep(0.01)

    def stop(self) -> None:
        """Close open pages' connections and join the thread."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])
