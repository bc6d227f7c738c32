"""Starts, kills and awaits the three processes of a delivery test, and leaves none behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from forked_scripts import ForkedScript, ForkedScripts

from probe.delivery.helper.helper import host_folder, lock_owner, lock_path

HERE = Path(__file__).resolve().parent
SECRET = "5e" * 16
RUN = "delivery"


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll until it holds; fail with `what` after a long while."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.02)


Process = subprocess.Popen[bytes] | ForkedScript


class Site:
    """A spool, a data folder, and the processes that work on them.

    Args:
        root: where all of it is.
        forked: forks the processes, if they are to be there at once.
        environment: of the processes, on top of this one's.
    """

    def __init__(self, root: Path, forked: ForkedScripts | None = None, **environment: str) -> None:
        self.spool = root / "spool"
        self.data = root / "data"
        self.confirmed = root / "confirmed"
        self._root = root
        self._forked = forked
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("NANSCOPE_")},
            "XDG_STATE_HOME": str(root / "state"),
            **environment,
        }
        self._processes: list[Process] = []

    def start_trainer(
        self, *, rank: int = 0, first_step: int = 0, steps: int = 0, cwd: Path | None = None
    ) -> Process:
        """Start a trainer; `steps` 0 runs until killed."""
        arguments = [self.spool, RUN, rank, first_step, steps, self.confirmed]
        return self._start("delivery_trainer.py", *map(str, arguments), cwd=cwd)

    @property
    def trainer(self) -> Process:
        """The process that was started last."""
        return self._processes[-1]

    def start_dashboard(self, *, secret: str = SECRET, ingest: bool = False) -> Process:
        """Start a collector with the real store; listens on a new port each time."""
        return self._start("delivery_dashboard.py", str(self.data), secret, str(self.spool) if ingest else "")

    def _start(self, script: str, *arguments: str, cwd: Path | None = None) -> Process:
        process: Process
        if self._forked is not None:
            command = [str(HERE / script), *arguments]
            process = self._forked.start(command, cwd or Path.cwd(), self.environment)
            self._processes.append(process)
            return process
        with (self._root / f"{script}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(HERE / script), *arguments],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=cwd,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def helper_pid(self) -> int | None:
        """The process id of the run's helper, if one is alive."""
        return lock_owner(lock_path(host_folder(self.spool / RUN)))

    def wait_for_helper_to_leave(self, timeout_s: float = 90.0) -> None:
        """A helper leaves when every trainer is over and everything is acknowledged."""
        wait_until(lambda: self.helper_pid() is None, "the helper did not leave", timeout_s)

    def stop(self, process: Process) -> None:
        """End a process in an orderly way."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, self.logs()

    def logs(self) -> str:
        """What the processes said."""
        forked = [one.said() for one in self._processes if isinstance(one, ForkedScript)]
        return "\n".join([*(path.read_text() for path in self._root.glob("*.log")), *forked])

    def close(self) -> None:
        """Kill what is left."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(30)
        free = 0
        while free < 4:  # the lock of a killed helper goes to one that waited for it
            pid = self.helper_pid()
            free = free + 1 if pid is None else 0
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.03)
