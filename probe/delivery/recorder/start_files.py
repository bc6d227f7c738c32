"""Writes what says that a run has begun: the first record, then the account and `run.json`.

The first record and the ring are written before `watch` returns: after a kill they tell which run it was, and
have its steps. On a slow disk the other files are left to the recorder's thread: readers do without them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...errors import JournalError
from ...wire import RunStart
from ..journal.journal import SLOW_S, JournalWriter
from ..journal.run_json import write_run_json


def open_journal(folder: Path, start: RunStart, cap_bytes: int) -> JournalWriter:
    """Open the journal of a run's rank; the account is `write_start`'s.

    Raises:
        JournalError: the spool cannot be written.
    """
    return JournalWriter(
        folder,
        run=start.run,
        writer=folder.name,
        cap_bytes=cap_bytes,
        keeps_room="events",
        begins_account=False,
    )


def write_start(
    journal: JournalWriter, record: bytes, start: RunStart, note: Callable[[str], None]
) -> tuple[Callable[[], None], ...]:
    """Write a run's first record, and the files around it.

    Args:
        journal: where it goes.
        record: the start, encoded.
        start: for `run.json`.
        note: is told, in one sentence, what goes wrong later.

    Returns:
        What the recorder's thread has to do, as the disk is slow; nothing where all is done.

    Raises:
        JournalError: the spool cannot be written.
    """
    journal.append_many("events", [record], is_brief=True)
    if journal.write_s < SLOW_S:
        _write_rest(journal, journal.folder.parent, start)
        return ()

    def write_rest() -> None:
        try:
            _write_rest(journal, journal.folder.parent, start)
        except JournalError as error:
            note(str(error))

    return (write_rest,)


def _write_rest(journal: JournalWriter, run_folder: Path, start: RunStart) -> None:
    journal.begin_account()
    write_run_json(run_folder, start)
