"""A real `mlflow server`: a process of its own on a free port of loopback, with its database in a folder."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = Path(sys.prefix) / "mlflow_server"
"""What `make trackers` installs for the server alone: this process has mlflow-skinny, as from our extra."""
START_S = 90.0


class TrackingServer:
    """Runs until `stop`; killed and started again, it has its address and its data as before."""

    def __init__(self, folder: Path, *options: str, **environment: str) -> None:
        self.folder = folder
        self._log = folder / "server.log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._options = options
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(PACKAGES),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            # Jobs are evaluations of language models, by processes and packages of their own.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts"), *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + START_S
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                pytest.fail(f"mlflow server does not start:\n{self._log.read_text()}")
            time.sleep(0.05)

    def version(self) -> str:
        return self._get("/version")

    def _is_healthy(self) -> bool:
        try:
            return self._get("/health") == "OK"
        except OSError:
            return False

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=5) as answer:
            return str(answer.read(), "utf-8")

    def kill(self) -> None:
        """As a machine that goes down: nothing is said to anyone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        """The server is a parent and a worker, in a group of their own."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@contextlib.contextmanager
def tracking_server(folder: Path, *options: str, **environment: str) -> Iterator[TrackingServer]:
    """Start one and end it; skip where the server is not installed, which `make trackers` has to do."""
    if not PACKAGES.is_dir():
        problem = f"mlflow's server is not installed in {PACKAGES}; make trackers runs this with it"
        if Path(sys.prefix).name == "trackers":
            pytest.fail(problem)
        pytest.skip(problem)
    server = TrackingServer(folder, *options, **environment)
    try:
        server.start()
        yield server
    finally:
        server.stop()
