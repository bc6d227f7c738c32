"""`dashboard serve` that kills itself at a chosen place; arguments as for `dashboard`.

SERVE_DIES   after-commit N: between the Nth commit that moved something and its acknowledgements
             in-commit N: within the Nth transaction, before its COMMIT
             in-checkpoint N: at the Nth time at which the database's file, and not its log, is written to
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from dashboard.cli import main
from dashboard.store import schema
from dashboard.store.duck import DuckStore
from dashboard.store.writer import Writer

WHERE, _, NUMBER = os.environ.get("SERVE_DIES", "").partition(" ")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_around_commits() -> None:
    """Replace the two methods that a commit goes through."""
    commit, write = DuckStore.commit, Writer.write
    moved, written = itertools.count(1), itertools.count(1)

    def commit_and_die(self: DuckStore) -> object:
        found = commit(self)
        if WHERE == "after-commit" and found and next(moved) == int(NUMBER):
            die()
        return found

    def write_and_die(self: Writer, *arguments: object) -> None:
        write(self, *arguments)  # type: ignore[arg-type]
        if WHERE == "in-commit" and next(written) == int(NUMBER):
            die()

    DuckStore.commit = commit_and_die  # type: ignore[method-assign, assignment]
    Writer.write = write_and_die  # type: ignore[method-assign, assignment]


def die_in_checkpoint(file: Path) -> None:
    """Look at the file as often as this process may: DuckDB lets other threads run while it writes."""
    last, seen = -1, -1
    while True:
        try:
            written = file.stat().st_mtime_ns
        except OSError:
            written = -1
        if written != last:
            last, seen = written, seen + 1
            if seen >= int(NUMBER):
                die()
        time.sleep(0)


if __name__ == "__main__":
    sys.setswitchinterval(1e-4)
    if WHERE in ("after-commit", "in-commit"):
        die_around_commits()
    elif WHERE == "in-checkpoint":
        schema.WAL_CHECKPOINT = "16KB"  # type: ignore[misc]
        data = Path(sys.argv[sys.argv.index("--data") + 1])
        threading.Thread(target=die_in_checkpoint, args=(data / schema.FILE_NAME,), daemon=True).start()
    sys.exit(main())
