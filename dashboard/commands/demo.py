"""`dashboard demo`: the server, and beside it `demo_train.py` as an ordinary training process."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from probe.delivery.helper.helper import host_folder, lock_owner, lock_path
from probe.delivery.journal.journal_reader import end_of_stream
from probe.delivery.journal.run_folders import list_writers
from probe.settings.places import DEFAULT_INGEST, DEFAULT_PAGE_PORT, default_spool, make_private_folder
from probe.wire import StreamKey, StreamName

from ..errors import DemoFailedError
from ..packaged import script_arguments
from ..serving.running import data_folder, find_server_of
from ..serving.serve import serve
from ..serving.server import Server
from ..store.protocol import Store

STORED_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_SETTLE_TIMEOUT_S: Final = 5.0
_STREAMS: Final[tuple[StreamName, ...]] = ("events", "metrics", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What `dashboard demo` was asked for."""

    host: str
    port: int
    ingest: str
    data: Path | None
    spool: Path | None
    open_browser: bool
    script_arguments: Sequence[str]
    ends_by_itself: bool
    """`DEMO_EXIT=1`: end once the training has ended and everything it wrote is stored."""


def run_demo(options: DemoOptions, *, announce: Callable[[str], None], notice: Callable[[str], None]) -> None:
    """Serve and train until Ctrl-C, or until all is stored; both end together, no process stays behind.

    Raises:
        DemoFailedError: there is no torch, the spool cannot be written, the training failed, or not
            everything arrived in the store.
        DashboardError: the server cannot start.
    """
    if find_spec("torch") is None:
        raise DemoFailedError(
            "The demo trains with PyTorch, which is not installed here: pip install torch==2.13.0"
        )
    with contextlib.ExitStack() as folders:
        options = _with_free_places(options, folders, notice)
        _serve_and_train(options, announce=announce, notice=notice)


def _serve_and_train(
    options: DemoOptions, *, announce: Callable[[str], None], notice: Callable[[str], None]
) -> None:
    demo = _Demo(options, notice)
    _require_writable(demo.spool)
    serve(
        host=options.host,
        port=options.port,
        ingest=options.ingest,
        data=options.data,
        spool=demo.spool,
        open_browser=options.open_browser,
        announce=announce,
        ready=demo.start,
        before_stop=demo.end,
        stop=demo.finished,
    )
    if demo.failure is not None:
        raise DemoFailedError(demo.failure)


def _with_free_places(
    options: DemoOptions, folders: contextlib.ExitStack, notice: Callable[[str], None]
) -> DemoOptions:
    """Replace the usual ports and the usual folders by others where they are taken, and say so.

    What was asked for otherwise stays as it is.
    """
    taken, instead = [], []
    if options.port == DEFAULT_PAGE_PORT and _is_taken(options.host, options.port):
        taken.append(f"port {options.port}")
        options = replace(options, port=0)
    ingest_port = DEFAULT_INGEST.rpartition(":")[2]
    if options.ingest == DEFAULT_INGEST and _is_taken("127.0.0.1", int(ingest_port)):
        taken.append(f"port {ingest_port}")
        options = replace(options, ingest=DEFAULT_INGEST.replace(ingest_port, "*"))
    if taken:
        instead.append("free ports")
    if options.data is None and find_server_of(data_folder(None)) is not None:
        own = Path(folders.enter_context(_own_folder()))
        taken.append("your dashboard's data folder")
        instead.append(f"a folder of its own, {own}, which is removed at the end")
        # With the usual spool all of the user's runs would be read into it.
        options = replace(options, data=own / "data", spool=options.spool or own / "spool")
    if taken:
        verb = "is" if len(taken) == 1 else "are"
        notice(f"{' and '.join(taken)} {verb} in use; the demo takes {' and '.join(instead)}.")
    return options


@contextlib.contextmanager
def _own_folder() -> Iterator[str]:
    """A folder for one demo; what its helper still writes at the end does not keep it from being removed."""
    folder = tempfile.mkdtemp(prefix="nanscope-demo-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_taken(host: str, port: int) -> bool:
    """Whether another process listens there; whatever else is wrong with it, serving says."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probing:
        probing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probing.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


class _Demo:
    """The training process, and the thread that waits for its end."""

    def __init__(self, options: DemoOptions, notice: Callable[[str], None]) -> None:
        self.spool = options.spool or default_spool()
        self.finished = threading.Event()
        self.finished_by_itself = False
        self.failure: str | None = None
        self._options, self._notice = options, notice
        self._run = f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self._interrupted = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiter: threading.Thread | None = None

    def start(self, server: Server) -> None:
        """Start the training in a process group of its own, so that Ctrl-C reaches it through `end` alone."""
        environment = {
            **os.environ,
            "NANSCOPE_RUN": self._run,
            "NANSCOPE_SPOOL": str(self.spool),
            "NANSCOPE_CONNECT": server.ingest,
            # The page is beside it: nobody has to be led there.
            "NANSCOPE_QUIET": "1",
        }
        command = [sys.executable, *script_arguments("demo_train.py"), *self._options.script_arguments]
        self._process = subprocess.Popen(command, env=environment, process_group=0, stderr=subprocess.PIPE)
        self._waiter = threading.Thread(target=self._wait, args=(server,), name="nanscope-demo", daemon=True)
        self._waiter.start()

    def end(self, server: Server) -> None:
        """End the training if it still runs, and let its helper deliver the rest, so that it leaves too."""
        if self._process is None:
            return
        if not self.finished_by_itself:
            self._interrupted.set()
        _stop(self._process)
        if self._waiter is not None:
            self._waiter.join(STORED_TIMEOUT_S)
        folder = self.spool / self._run
        if folder.exists():
            _wait_until(
                lambda: is_stored(server.store, folder) and _helper_has_left(folder), _SETTLE_TIMEOUT_S
            )

    def _wait(self, server: Server) -> None:
        """Wait for the training's end; its outcome decides how the demo ends."""
        assert self._process is not None
        self._pass_on_errors(self._process)
        code = self._process.wait()
        if self._interrupted.is_set():
            return
        if code != 0:
            self.failure = f"The demo's training failed with exit code {code}; its message is above."
        if not self._options.ends_by_itself:
            outcome = "has failed" if code else "has ended"
            self._notice(f"the training {outcome}; the page stays up until Ctrl-C.")
            return
        folder = self.spool / self._run
        if code == 0 and not _wait_until(
            lambda: self._interrupted.is_set() or is_stored(server.store, folder), STORED_TIMEOUT_S
        ):
            self.failure = f"Not all of {folder} was stored within {STORED_TIMEOUT_S:.0f} s."
        self.finished_by_itself = True
        self.finished.set()

    def _pass_on_errors(self, process: subprocess.Popen[bytes]) -> None:
        """Show the training's stderr until Ctrl-C: the traceback of our own interruption is no news."""
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                if not self._interrupted.is_set():
                    sys.stderr.write(line.decode(errors="replace"))


def is_stored(store: Store, run_folder: Path) -> bool:
    """Whether the store is at least as far as every stream that the run's journals hold now."""
    ends = [
        (StreamKey(run=run_folder.name, writer=writer.name, stream=stream), tail.next_seq)
        for writer in list_writers(run_folder)
        for stream in _STREAMS
        if (tail := end_of_stream(writer, stream)) is not None
    ]
    return bool(ends) and all(store.position(key).next_seq >= end for key, end in ends)


def _require_writable(spool: Path) -> None:
    """Refuse, before anything starts, a spool in which the training could leave nothing."""
    try:
        make_private_folder(spool)
        with tempfile.TemporaryFile(dir=spool):
            pass
    except OSError as error:
        raise DemoFailedError(
            f"The demo cannot write to the spool {spool}: {error.strerror}; choose another with --spool."
        ) from error


def _helper_has_left(run_folder: Path) -> bool:
    return lock_owner(lock_path(host_folder(run_folder))) is None


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Ask every 0.1 s; False at the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask as Ctrl-C would, then as `kill` would, then insist."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_STOP_TIMEOUT_S)
