"""A real server on free ports and a real Chromium in front of it, for the tests of the page."""

from __future__ import annotations

import hashlib
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from clickhouse_server import ClickHouseServer

from dashboard.errors import DashboardError
from dashboard.serving.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "dashboard"))
import page_runs

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PATIENCE_MS = 20_000
TOKEN = "token-for-tests"
BOTH_ENGINES = pytest.mark.parametrize("engine", ["duckdb", "clickhouse"], indirect=True)
"""Runs a test of the page over a file, and over a database that several servers may share."""
SERVER_AWAY = ("ERR_CONNECTION_REFUSED", "WebSocket", "Callback failed: the server did not respond")
"""What Chromium and Dash say while a server is being restarted, which is what such tests are about."""


class Served:
    """A started server that can be restarted on the same port, and what is fed into it.

    Each of a worker's servers has the port of its first one: what Chromium keeps, it keeps by address.

    Args:
        folder: For its files.
        clickhouse: Where its data is, in a database of its own; None for a file in the folder.
    """

    _port = 0

    def __init__(self, folder: Path, clickhouse: ClickHouseServer | None = None) -> None:
        self.folder, self._clickhouse = folder, clickhouse
        self._database = "page_" + hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest()
        try:
            self.server = self._started()
        except DashboardError:  # somebody else has the port by now
            Served._port = 0
            self.server = self._started()

    def restart(self) -> None:
        self.server.stop()
        self.server = self._started()

    def stop(self) -> None:
        self.server.stop()
        if self._clickhouse is not None:
            self._clickhouse.ask(f"DROP DATABASE {self._database}")

    def _started(self) -> Server:
        server = self._make(port=Served._port)
        with pytest.MonkeyPatch.context() as patch:
            # What fills a store goes on from where its last commit ends.
            patch.setattr("dashboard.store.engines.COMMIT_SHARE", 1.0)
            server.start()
        Served._port = int(server.page.rsplit(":", 1)[1].strip("/"))
        return server

    def fill(self, **arguments: object) -> None:
        """Put a synthetic run, or more of it, into the store; see `page_runs.fill`."""
        page_runs.fill(self.server.store, **arguments)
        self.server.notify()

    def add_models(self, count: int, **arguments: object) -> None:
        page_runs.add_models(self.server.store, count, **arguments)
        self.server.notify()

    def add_event(self, event: object) -> None:
        page_runs.add_event(self.server.store, event)
        self.server.notify()

    def add_events(self, events: list[object]) -> None:
        page_runs.add_event(self.server.store, *events)
        self.server.notify()

    def end_run(self, *, run: str = "demo-run") -> None:
        page_runs.end_run(self.server.store, run=run)
        self.server.notify()

    def _make(self, *, port: int) -> Server:
        environment = {"XDG_STATE_HOME": str(self.folder / "state"), "NANSCOPE_TOKEN": TOKEN}
        if self._clickhouse is not None:
            environment["NANSCOPE_STORE"] = self._clickhouse.url(self._database)
            environment["NANSCOPE_STORE_PASSWORD"] = self._clickhouse.password
        return Server(
            port=port,
            ingest="tcp://127.0.0.1:0",
            data=self.folder / "data",
            spool=self.folder / "spool",
            environment=environment,
        )


def never_late() -> float:
    """Return a start for a run whose steps lie ahead: however slowly a page opens, none of them is late."""
    return time.time() + 3600


def until(page: Page, script: str, arg: object = None) -> None:
    """Wait until a script is true. Playwright's own waiting needs eval, which the page's policy forbids."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not page.evaluate(script, arg):
        assert time.monotonic() < deadline, f"not true within {PATIENCE_MS} ms: {script}"
        page.wait_for_timeout(50)


_runs = itertools.count(1)


@pytest.fixture
def own_run() -> str:
    """Name of a run of the test's own, beside those of other tests on the server of a class."""
    return f"own-run-{next(_runs)}"


@pytest.fixture(scope="class")
def engine(request: pytest.FixtureRequest) -> ClickHouseServer | None:
    """Where the served data is: None for a file; `BOTH_ENGINES` chooses, and else `--page-engine`."""
    is_file = getattr(request, "param", request.config.getoption("--page-engine")) == "duckdb"
    return None if is_file else request.getfixturevalue("clickhouse")


@pytest.fixture
def served(tmp_path: Path, engine: ClickHouseServer | None) -> Iterator[Served]:
    with serving(tmp_path, engine) as started:
        yield started


@pytest.fixture(scope="class")
def shared_served(
    tmp_path_factory: pytest.TempPathFactory, engine: ClickHouseServer | None
) -> Iterator[Served]:
    """The server of `shared_page`."""
    with serving(tmp_path_factory.mktemp("shared"), engine) as started:
        yield started


@contextmanager
def serving(folder: Path, clickhouse: ClickHouseServer | None = None) -> Iterator[Served]:
    started = Served(folder, clickhouse)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright: Playwright, chromium_path: str) -> Iterator[Browser]:
    """A browser without a past, for tests that open pages of their own."""
    chromium = playwright.chromium.launch(executable_path=chromium_path, args=ARGUMENTS)
    yield chromium
    chromium.close()


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Chromium keeps compiled scripts: without them a page takes 4.5 s of CPU, with them 1.9."""
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def window(playwright: Playwright, chromium_path: str, profile: Path) -> Iterator[BrowserContext]:
    """Chromium with what it keeps of earlier files."""
    opened = playwright.chromium.launch_persistent_context(
        profile,
        executable_path=chromium_path,
        args=ARGUMENTS,
        viewport={"width": 1440, "height": 900},
        color_scheme="dark",
    )
    yield opened
    opened.close()


@pytest.fixture
def page(window: BrowserContext, served: Served) -> Iterator[Page]:
    """A page of the test's own."""
    with watched_page(window, served) as opened:
        yield opened


@pytest.fixture(scope="class")
def shared_page(window: BrowserContext, shared_served: Served) -> Iterator[Page]:
    """A page for the tests of a class, which leave it as they have found it: two seconds for each to open."""
    with watched_page(window, shared_served) as opened:
        yield opened


@contextmanager
def watched_page(window: BrowserContext, served: Served) -> Iterator[Page]:
    """A page that fails its test when it asks another host for something or breaks in a script.

    It is closed before its server: a callback under way when that goes is an error. Of earlier pages it
    knows no cookie, no permission and nothing that they have stored.
    """
    opened = window.new_page()
    opened.set_default_timeout(PATIENCE_MS)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(f"script: {error}"))
    opened.on("console", lambda message: _note_console(problems, message.type, message.text))
    opened.on("request", lambda request: _note_foreign(problems, request.url))
    yield opened
    forget(window, served.server.page)
    _wait_for_renderers()
    assert not problems, "\n".join(problems)


def forget(window: BrowserContext, address: str) -> None:
    """Close what the test has opened, and keep nothing of it but compiled scripts."""
    first, *others = window.pages
    for opened in others:
        opened.close()
    window.clear_cookies()
    window.clear_permissions()
    origin = {"origin": address.rstrip("/"), "storageTypes": "local_storage,indexeddb,service_workers"}
    window.new_cdp_session(first).send("Storage.clearDataForOrigin", origin)


def _wait_for_renderers() -> None:
    """Let closed renderers end: meanwhile they have no command line by which to know them as Chromium's."""
    deadline = time.monotonic() + 10
    before: set[int] = set()
    while time.monotonic() < deadline:
        children = psutil.Process().children(recursive=True)
        alive = {child.pid for child in children}
        if alive == before and not any(_is_ending(child) for child in children):
            return
        before = alive
        time.sleep(0.05)


def _is_ending(process: psutil.Process) -> bool:
    try:
        return process.name().startswith("chrom") and not process.cmdline()
    except psutil.Error:
        return False


def _note_console(problems: list[str], kind: str, text: str) -> None:
    if kind == "error" and not any(expected in text for expected in SERVER_AWAY):
        problems.append(f"console: {text}")


def _note_foreign(problems: list[str], url: str) -> None:
    if not url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")):
        problems.append(f"foreign request: {url}")
