"""Runs scripts, each in a process of its own that has torch already: it is forked from one that loaded it.

    with ForkedScripts() as scripts:
        code, out, err = scripts.start(["training.py", "--steps", "3"], folder).finish()

Three of the four seconds of a short training are imports. Where the subject is how Python starts or what it
says of an uncaught exception, start Python itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


class ForkedScripts:
    """The process that has torch and forks for each script.

    Args:
        more: modules that it loads as well.
    """

    def __init__(self, *more: str) -> None:
        self._more = more

    def __enter__(self) -> ForkedScripts:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *self._more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._folder = TemporaryDirectory()
        return self

    def __exit__(self, *_: object) -> None:
        """Let it end, which it does as soon as nobody can ask any more."""
        self._process.communicate(timeout=60)
        self._folder.cleanup()

    def start(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> ForkedScript:
        """Start a script with its arguments, in a folder; `environment` goes on top of this process's own."""
        values = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        request = {"command": command, "folder": str(folder), "environment": values}
        return ForkedScript(self, self.ask(request), Path(self._folder.name))

    def ask(self, request: dict[str, Any]) -> Any:
        """Send one request, wait for its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({**request, "written": self._folder.name}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        return json.loads(answer)


@dataclass
class ForkedScript:
    """A script that runs or has ended; as much of `subprocess.Popen` as tests need."""

    scripts: ForkedScripts
    pid: int
    written: Path
    code: int | None = None

    def wait(self, timeout_s: float = 120.0) -> int:
        """Return the exit code, that of a signal below zero."""
        deadline = time.monotonic() + timeout_s
        while self.code is None:
            self.code = self.scripts.ask({"ended": self.pid})
            assert time.monotonic() < deadline, "the script does not end"
            time.sleep(0.02)
        return self.code

    def finish(self, timeout_s: float = 120.0) -> tuple[int, str, str]:
        """Wait; return the exit code and what was written to stdout and stderr."""
        code = self.wait(timeout_s)
        out, err = ((self.written / f"{self.pid}.{name}").read_text() for name in ("out", "err"))
        return code, out, err

    def kill(self) -> None:
        """The process id is its own until it was waited for."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)


def become_script(command: list[str], folder: str, environment: dict[str, str], written: str) -> None:
    """Be the process that `python *command` would be, and run its script."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{written}/{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = command
    sys.path[0] = str(Path(command[0]).resolve().parent)
    main = types.ModuleType("__main__")
    main.__file__ = command[0]
    sys.modules["__main__"] = main
    exec(compile(Path(command[0]).read_bytes(), command[0], "exec"), main.__dict__)  # noqa: S102  our own


def serve() -> dict[str, Any] | None:
    """Answer requests; returns what to run in each new process, and nothing in the first one at the end."""
    for line in iter(sys.stdin.readline, ""):
        request: dict[str, Any] = json.loads(line)
        answer: int | None
        if "ended" in request:
            child, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if child else None
        else:
            answer = os.fork()
            if answer == 0:
                return request
        print(json.dumps(answer), flush=True)
    return None


if __name__ == "__main__":
    # What scripts import, and the first optimizer.
    for module in ("torch._dynamo", "torch.distributed", "torch.utils.data", *sys.argv[1:]):
        importlib.import_module(module)
    gc.freeze()  # or each of the scripts would look at all of torch once more when it ends
    asked = serve()
    if asked is not None:
        become_script(**asked)
