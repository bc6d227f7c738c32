"""`serve`: a server until a signal comes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from probe.settings.places import DEFAULT_INGEST, DEFAULT_PAGE_PORT

from ..descriptors import raise_limit
from . import listening
from .allocator import give_memory_back
from .reach import Reach
from .server import Server

if TYPE_CHECKING:
    from ..outlets.settings import Outlets


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PAGE_PORT,
    ingest: str = DEFAULT_INGEST,
    data: Path | None,
    store: str | None = None,
    spool: Path | None,
    only: Collection[str] | None = None,
    open_browser: bool,
    announce: Callable[[str], None],
    ready: Callable[[Server], None] | None = None,
    before_stop: Callable[[Server], None] | None = None,
    stop: threading.Event | None = None,
    notice: Callable[[str], None] = lambda line: None,
    outlets: Outlets | None = None,
    reach: Reach | None = None,
    keys: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, or until `stop` is set.

    Args:
        host: Address of the page; not of loopback only as `reach` says how it is protected.
        port: Its port; 0 takes a free one.
        ingest: ZeroMQ address for probes; its port may be ``*`` or 0.
        data: Folder of the store; None is in the user's state folder.
        store: Address of a ClickHouse database, which holds the data in place of a file there; None: as the
            environment says.
        spool: Journals to read; None is the default spool.
        only: Ids of the runs that are read from it; None reads all.
        open_browser: Open the page on a local graphical session.
        announce: Gets the one line that says where the page is.
        ready: Called once everything runs.
        before_stop: Called at the end, while everything still runs.
        stop: Ends the wait from another thread.
        notice: Gets what the user should know.
        outlets: Webhooks and OpenTelemetry; None sends nothing.
        reach: How the page is reached, in place of `host`.
        keys: File of `dashboard keygen`; an ingest that other machines reach wants one, and finds it in the
            state folder where None is given.
        environment: Where the default places and the tokens come from.

    Raises:
        DashboardError: a port is in use, other machines could reach what is not protected, or the data folder
            cannot be opened.
    """
    give_memory_back()
    raise_limit()
    finished = stop if stop is not None else threading.Event()
    server = Server(
        host=host,
        port=port,
        ingest=ingest,
        data=data,
        store=store,
        spool=spool,
        only=only,
        outlets=outlets,
        reach=reach,
        keys=keys,
        environment=environment,
    )
    with _signals_set(finished):
        try:
            server.start()
            announce(f"nanscope {server.address}")
            if server.elsewhere:
                notice(f"{server.elsewhere}.")
            if open_browser and listening.has_graphical_session(os.environ):
                listening.open_browser(server.address, environment)
            try:
                if ready is not None:
                    ready(server)
                while not finished.wait(0.5):
                    pass
            finally:
                if before_stop is not None:
                    before_stop(server)
        finally:
            server.stop()


@contextlib.contextmanager
def _signals_set(event: threading.Event) -> Iterator[None]:
    """SIGINT, SIGTERM and a closed terminal set the event; only the main thread may listen for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # what nohup asks for stays
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
