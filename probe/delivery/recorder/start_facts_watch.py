"""The changes of the script's git work tree when a run began, so that it can be made again.

Git runs in a process that is no child of the training (`os.wait()` in a script must not meet it) and writes a
file into the run's folder; the recorder's thread takes it from there, once.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import time
from pathlib import Path
from typing import Final

import msgspec

from ...guard import let_pass, suppressed
from ...wire import Document, RunStart
from ...wire.documents import make_document
from ...wire.ordinary_files import read_ordinary
from ...wire.start_facts import KIND, MAX_DIFF, StartFacts, WorkTree
from ..journal.run_json import note_work_tree

_FILE: Final = "work-tree.diff"
_MOST_BYTES: Final = 32 * 1024 * 1024
_LIMIT_S: Final = 20
_PATIENCE_S: Final = 30.0
_NAMES: Final = re.compile(rb"^diff --git a/.*? b/(.*)$", re.MULTILINE)
# Nothing that a repository's configuration names is run: no pager, no filter, no file system monitor.
_SHELL: Final = f"""
{{ timeout {_LIMIT_S} git --no-optional-locks --no-pager -c core.fsmonitor=false -C "$1" diff HEAD \
--no-color --no-ext-diff --no-textconv | head -c {_MOST_BYTES} > "$2.part" && mv "$2.part" "$2"; }} &
"""


def ask_git(folder: Path, run_folder: Path) -> None:
    """Have git write what has changed in the work tree of `folder` since its newest commit."""
    target = run_folder / _FILE
    with suppressed(OSError, ValueError, subprocess.TimeoutExpired):
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "sh", str(folder), str(target)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        shell.wait(timeout=2.0)


def take_work_tree(run_folder: Path) -> WorkTree | None:
    """Return what git has written, and remove the file; None while there is nothing."""
    path = run_folder / _FILE
    try:
        data = read_ordinary(path, _MOST_BYTES)
        path.unlink()
    except OSError as error:
        let_pass(error)
        return None
    files = [name.decode("utf-8", "replace")[:1000] for name in _NAMES.findall(data)]
    return WorkTree(
        diff=data[:MAX_DIFF].decode("utf-8", "replace") if len(data) <= MAX_DIFF else "",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        files=files[:1000],
        is_whole=len(data) < _MOST_BYTES,
    )


class StartFactsWatch:
    """Writes the run's facts, at first and when git has answered; a task of the recorder's thread.

    Args:
        run_folder: `SPOOL/<run>`.
        facts: what is known at the start.
        folder: the script's working directory, where it is in a work tree of git; None asks nobody.
    """

    def __init__(self, run_folder: Path, facts: StartFacts, folder: Path | None) -> None:
        self._run_folder, self._facts, self._folder = run_folder, facts, folder
        self._until_s: float | None = None
        self._is_done = False

    @classmethod
    def of(cls, run_folder: Path, start: RunStart) -> StartFactsWatch:
        """The watch of a run; of several ranks the first one asks."""
        facts = StartFacts(
            options=start.options, config=start.config, config_source=start.config_source, seeds=start.seeds
        )
        is_asked = start.git_commit is not None and start.rank == 0
        folder = Path(start.working_directory) if is_asked else None
        if folder is not None:
            # On the thread that trains: a data loader's worker that is forked while another thread starts a
            # process inherits the pipe on which that thread then waits, for as long as the worker lives.
            ask_git(folder, run_folder)
        return cls(run_folder, facts, folder)

    @property
    def period_s(self) -> float:
        """Seconds until the next look."""
        return 3600.0 if self._is_done else 1.0

    def look(self) -> list[Document]:
        """Write what is known at first, then see whether git has answered."""
        if self._is_done:
            return []
        if self._until_s is None:
            self._until_s = time.monotonic() + _PATIENCE_S
            self._is_done = self._folder is None
            return [self._document()]
        found = take_work_tree(self._run_folder)
        self._is_done = found is not None or time.monotonic() > self._until_s
        if found is not None and found.size_bytes:
            self._facts = msgspec.structs.replace(self._facts, work_tree=found)
            note_work_tree(self._run_folder, found)
            return [self._document()]
        return []

    def close(self) -> list[Document]:
        """A run that ends early waits for nothing."""
        return self.look() if self._until_s is not None else []

    def _document(self) -> Document:
        return make_document(self._facts, kind=KIND, key="", step=None, time=time.time())
