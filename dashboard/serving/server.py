"""The `serve` process: store, collector, spool reader and page, started and stopped together.

uvicorn runs on its own thread. Nothing heavy is imported before `Server.start`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from probe.settings.places import (
    DEFAULT_INGEST,
    DEFAULT_PAGE_PORT,
    ServeState,
    default_spool,
    serve_state_path,
)

from ..ingest.watched_ranks import WatchedRanks
from . import listening
from .credentials import load_credentials
from .log_limits import LogLimits
from .reach import Reach, connect_address, first_certificate, is_loopback_host
from .running import (
    INSTANCE,
    STORE_VARIABLE,
    RunningNote,
    data_folder,
    remember_data,
    remove_note,
    write_note,
)
from .serve_note import ServeNote
from .spool_thread import SpoolThread

if TYPE_CHECKING:
    from ..ingest.collector import Collector
    from ..ingest.collector_status import CollectorStatus
    from ..ingest.storage import StorageLine
    from ..live.hub import Hub
    from ..outlets.families import FamilyReader
    from ..outlets.running import RunningOutlets
    from ..outlets.settings import Outlets
    from ..outlets.status import OutletStatus
    from ..store.engines import ServedStore


class Server:
    """Everything that `dashboard serve` runs; `start` and `stop` are idempotent, `stop` undoes `start`."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PAGE_PORT,
        ingest: str = DEFAULT_INGEST,
        data: Path | None = None,
        store: str | None = None,
        spool: Path | None = None,
        only: Collection[str] | None = None,
        outlets: Outlets | None = None,
        reach: Reach | None = None,
        keys: Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """See `serve.serve` for the arguments.

        Raises:
            DashboardError: other machines could reach the page or the ingest, and it is not protected; or
                `NANSCOPE_TOKEN`, `NANSCOPE_VIEW_TOKEN`, a certificate or keys cannot be used.
        """
        self._reach = reach or Reach(host=host)
        self._host, self._port, self._ingest = self._reach.host, port, ingest
        self._data = data_folder(data, environment)
        self._store_url = store or environment.get(STORE_VARIABLE, "")
        self._spool, self._only = spool or default_spool(environment), only
        self._environment = environment
        self._credentials = load_credentials(environment)
        chosen = [environment.get(name) for name in ("NANSCOPE_TOKEN", "NANSCOPE_VIEW_TOKEN")]
        self._reach.check(port=port, tokens=tuple(token for token in chosen if token))
        self._keys_path = _keys_path(ingest, keys, environment)
        self._log_limits = LogLimits()
        self._stopping = threading.Event()
        self._undo = contextlib.ExitStack()
        self._changed_at = time.monotonic()
        self._spool_reader: SpoolThread | None = None
        self._storage = self._removed_data = ""
        self._storage_line: StorageLine | None = None
        self._serve_note: ServeNote | None = None
        self.elsewhere = ""
        """Says that trainings find another server than this one, and how to reach each; else empty."""
        self._store: ServedStore | None = None
        self._watched = WatchedRanks()
        self._hub: Hub | None = None
        self._collector: Collector | None = None
        self._families: FamilyReader | None = None
        self._outlets_wanted = outlets
        self._outlets: RunningOutlets | None = None

    @property
    def store(self) -> ServedStore:
        """The open store; only while started."""
        if self._store is None:
            raise RuntimeError("the server is not started")
        return self._store

    @property
    def page(self) -> str:
        """Address of the page, without the token: what browsers open."""
        return f"{self._reach.public}/" if self._reach.public else self._page_at(self._reach.shown_host)

    @property
    def local_page(self) -> str:
        """Address of the page for commands of this machine."""
        return self._page_at(self._reach.local_host)

    def _page_at(self, host: str) -> str:
        scheme = "https" if self._reach.certificate is not None else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}/"

    @property
    def address(self) -> str:
        """Address that opens the page: with the token."""
        return f"{self.page}?token={self._credentials.token}"

    @property
    def view_address(self) -> str:
        """Address that opens the page for who may only look."""
        return f"{self.page}?token={self._credentials.view_token}"

    @property
    def ingest(self) -> str:
        """ZeroMQ address that probes of this machine ship to; with its real port once started."""
        return connect_address(self._ingest)

    def start(self) -> None:
        """Open the store, listen for probes and serve the page; returns once the page answers.

        Raises:
            DashboardError: a port is in use, or the data folder cannot be opened.
        """
        if self._store is not None:
            return
        try:
            self._undo.callback(self._log_limits.install())
            listener = self._undo.enter_context(listening.listen(self._host, self._port))
            self._port = listener.getsockname()[1]
            self._open_store()
            self._start_outlets()
            self._start_collector()
            self._start_page(listener)
            self._leave_note()
            self._start_spool_reader()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything in reverse order of starting; what was received is committed."""
        self._stopping.set()
        self._undo.close()
        self._store = None

    def wait_idle(self, *, quiet_s: float = 2.0, timeout_s: float = 60.0) -> bool:
        """Wait until nothing new has arrived for `quiet_s` seconds; False at the timeout."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if time.monotonic() - self._changed_at >= quiet_s:
                return True
            self._stopping.wait(0.05)
        return False

    def _open_store(self) -> None:
        from ..live.hub import Hub
        from ..store.engines import open_store

        self._store = open_store(self._data, self._store_url, environment=self._environment)
        self._undo.callback(self._store.close)
        self._store.share_looks(self._watched)
        self._hub = Hub(
            self._store,
            notices=self.notices,
            storage=lambda: self._storage,
            on_look=self._watched.note,
        )
        self._undo.callback(self._hub.close)

    def _start_outlets(self) -> None:
        """Before anything comes in, and stopped after the last of it."""
        from ..outlets.families import FamilyReader

        self._families = FamilyReader(
            self.store, collector=self._collector_status, outlets=self._outlet_statuses
        )
        if self._outlets_wanted is not None:
            from ..outlets.running import RunningOutlets

            self._outlets = RunningOutlets(self._outlets_wanted, self.store, self._families, page=self.page)
            self._outlets.start()
            self._undo.callback(self._outlets.stop)

    def _collector_status(self) -> CollectorStatus:
        from ..ingest.collector_status import CollectorStatus

        return CollectorStatus() if self._collector is None else self._collector.status

    def _outlet_statuses(self) -> list[OutletStatus]:
        return [] if self._outlets is None else self._outlets.statuses()

    def _start_collector(self) -> None:
        from ..ingest.collector import Collector
        from ..ingest.curve import read_server_keys

        keys = None if self._keys_path is None else read_server_keys(self._keys_path)
        secret = bytes.fromhex(self._credentials.secret)
        self._collector = Collector(
            self.store,
            endpoint=self._ingest,
            secret=secret,
            on_change=self.notify,
            keys=keys,
            watched=self._watched.of,
        )
        self._undo.callback(self._collector.stop)
        self._ingest = self._collector.start()

    def notify(self) -> None:
        """Tell open pages that the store has something new; any thread."""
        self._changed_at = time.monotonic()
        if self._hub is not None:
            self._hub.notify()

    def _start_page(self, listener: socket.socket) -> None:
        from ..packaged import packaged_file
        from .access_rules import access_rules, cookie_name
        from .answer_rules import AnswerRules, asset_versions
        from .app import create_app
        from .gate import Gate
        from .page_thread import PageThread
        from .security import SecurityMiddleware
        from .sessions import Sessions

        assert self._hub is not None
        assert self._collector is not None
        assert self._families is not None
        reach = self._reach
        is_secure = reach.certificate is not None or bool(reach.public)
        cookie = cookie_name(self._port, is_secure=is_secure)
        dash, fastapi = create_app(
            self.store,
            self._hub,
            self._collector.desk,
            self._families,
            page=self.page,
            ingest=self.ingest,
            spool=self._spool,
            cookie=cookie,
        )
        rules = access_rules(
            port=self._port,
            names=reach.names(),
            script_hashes=dash.csp_hashes(),
            has_tls=reach.certificate is not None,
            public=reach.public,
        )
        gate = Gate(
            self._credentials,
            Sessions(self._credentials, self._environment),
            cookie=rules.cookie,
            proxy_host=reach.public.removeprefix("https://"),
        )
        answering = AnswerRules(fastapi, cookie=cookie, versions=asset_versions(packaged_file("assets")))
        runner = PageThread(
            SecurityMiddleware(answering, rules=rules, gate=gate),
            listener,
            certificate=reach.certificate,
            key=reach.key,
        )
        self._undo.callback(runner.stop)
        runner.start()

    def _start_spool_reader(self) -> None:
        reader = self._spool_reader = SpoolThread(
            self.store,
            self._spool,
            only=self._only,
            is_shipped=lambda run: run in self._collector_status().runs,
            on_news=self.notify,
            each_pass=self._look_after,
        )
        reader.start()
        self._undo.callback(reader.stop)

    def _look_after(self) -> None:
        """What is to be done from time to time: called after each pass over the spool."""
        from ..ingest.removed_data import removed_data
        from ..ingest.storage import StorageLine

        self._storage_line = self._storage_line or StorageLine()
        self._storage = self._storage_line.look(self._spool, self._data, store=self._store_url)
        self._removed_data = removed_data(self._data, store=self._store_url)
        self._keep_note()
        self._log_limits.write_summaries()

    def notices(self) -> list[str]:
        """What the page must tell beside the data: damage, refusals, a store that takes nothing."""
        found = [self._store.notice] if self._store is not None and self._store.notice else []
        if self._collector is not None:
            status = self._collector.status
            if status.store_problem:
                found.append(f"The store takes no data: {status.store_problem}")
            if status.has_met_other_secret:
                found.append(
                    f"A training tries to ship to {status.endpoint} with another ingest secret: nothing "
                    "arrives. Where it runs, set NANSCOPE_SECRET to the `secret` in "
                    f"{serve_state_path(self._environment)}"
                )
            if status.ended_connections:
                found.append(
                    f"{status.ended_connections:,} connections to {status.endpoint} were ended, the last for "
                    f"{status.ended_reason}"
                )
            if status.malformed_messages:
                found.append(f"{status.malformed_messages:,} messages from trainings could not be read.")
            if status.stranger_messages:
                count = f"{status.stranger_messages:,} messages at {status.endpoint}"
                found.append(f"{count} came from no training, and were refused")
        if self._store is not None:
            found += self._store.limit_notices()
        if self._outlets is not None:
            found += self._outlets.notices()
        found += [text for text in (self._removed_data, self.elsewhere) if text]
        losses = self._collector.status.losses if self._collector is not None else ()
        of_spool = self._spool_reader.problems if self._spool_reader is not None else ()
        if problems := (*losses, *of_spool):
            more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
            found.append(problems[0] + more)
        return [text if text.endswith(".") else f"{text}." for text in found]

    def _leave_note(self) -> None:
        """Have local probes find this server, unless they find another; leave a note for other commands."""
        mine = ServeState(
            page=self.page,
            ingest=self.ingest,
            pid=os.getpid(),
            secret=self._credentials.secret,
            data=str(self._data.absolute()),
            spool=str(self._spool.absolute()),
            keys=self._client_keys(),
        )
        self._serve_note = ServeNote(mine, self._environment)
        self._serve_note.keep()
        self.elsewhere = self._serve_note.words()
        self._undo.callback(self._serve_note.remove)
        certificate = self._reach.certificate
        opening = RunningNote(
            page=self.local_page,
            token=self._credentials.token,
            pid=os.getpid(),
            instance=INSTANCE,
            view_token=self._credentials.view_token,
            public=self.page if self.page != self.local_page else "",
            certificate="" if certificate is None else first_certificate(certificate),
        )
        write_note(self._data, opening)
        remember_data(self._data, self._environment)
        self._undo.callback(remove_note, self._data, opening)

    def _client_keys(self) -> str:
        """Return the file with which trainings of this machine get in, where keys are wanted."""
        from ..ingest.curve import client_keys_beside

        beside = None if self._keys_path is None else client_keys_beside(self._keys_path)
        return "" if beside is None else str(beside.absolute())

    def _keep_note(self) -> None:
        """Write `serve.json` again where it is gone, or another server that had it."""
        if self._serve_note is not None and not self._stopping.is_set():
            with contextlib.suppress(OSError):
                self._serve_note.keep()
            self.elsewhere = self._serve_note.words()


def _keys_path(ingest: str, chosen: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the keys of an ingest: those that were chosen, else beyond loopback those of the user."""
    if chosen is not None:
        return chosen
    host = ingest.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if not ingest.startswith("tcp://") or is_loopback_host(host):
        return None
    from ..ingest.curve import SERVER_FILE, keys_folder

    usual = keys_folder(environment) / SERVER_FILE
    return usual if usual.exists() else None
