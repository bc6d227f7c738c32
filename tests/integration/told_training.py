"""A real training in a process of its own, which trains until it is told to end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SCRIPTS = Path(__file__).parent / "scripts"
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class ToldTraining:
    """The training, and the id of its run."""

    process: subprocess.Popen[str]
    run: str

    def end(self) -> None:
        """Have it end in order, and wait for that."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(_PATIENCE_S) == 0


@contextmanager
def told_training(
    folder: Path, *arguments: str, script: str = "trained_until_told.py", connect: str | None = None
) -> Iterator[ToldTraining]:
    """Train for the server whose spool and state lie in `folder`; see the script for the arguments.

    `connect` is the address that it ships to, in place of that of the state.
    """
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(folder / "state"),
        "NANSCOPE_SPOOL": str(folder / "spool"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    del environment["NANSCOPE_CONNECT"]
    if connect is not None:
        environment["NANSCOPE_CONNECT"] = connect
    command = [sys.executable, str(_SCRIPTS / script), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        yield ToldTraining(process, process.stdout.readline().strip())
