"""Tells of trainers that were killed together with their helper: nobody has written down that they are gone.

For readers of journals; writes nothing. The event is the one that a helper would have written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from ...errors import WireError
from ...wire import Event, Layout, RunEnd, RunStart, decode_record
from ..journal.journal_reader import read_stream
from ..journal.rank_journals import rank_of
from ..journal.run_folders import list_writers
from ..recorder.process_identity import is_gone
from .helper import lock_owner, lock_path
from .oom_record import Death
from .trainer_watch import TrainerWatch


def unseen_deaths(run_folder: Path, known: Iterable[Event]) -> list[Event]:
    """Return what a helper would say of each trainer that is gone; nothing while one is at work.

    Args:
        run_folder: `SPOOL/<run>`.
        known: events of the run that somebody has written.
    """
    writers = list_writers(run_folder)
    if any(lock_owner(lock_path(writer)) is not None for writer in writers):
        return []
    told = {(event.rank, event.incarnation) for event in known if event.kind == "killed"}
    return [event for writer in writers if rank_of(writer) is not None for event in _death(writer, told)]


def _death(folder: Path, told: set[tuple[int, int]]) -> list[Event]:
    """What is to be said of one trainer: nothing if it lives, has ended, or cannot be seen from here."""
    start: RunStart | None = None
    model = ""
    hangs: dict[str, Event] = {}
    for _, data in read_stream(folder, "events"):
        with contextlib.suppress(WireError):
            record = decode_record(data)
            if isinstance(record, RunEnd):
                return []
            if isinstance(record, RunStart):
                start = record
                if (start.rank, start.incarnation) in told or is_gone(start) is not True:
                    return []
            elif isinstance(record, Layout):
                model = model or record.model
            elif isinstance(record, Event) and record.kind == "hang":
                hangs[record.id] = record
    if start is None:
        return []
    watch = TrainerWatch(folder, start)
    watch.model = model
    nothing = Death(memory="", oom_record="", is_memory=False)
    return watch.die(None, nothing, [event for event in hangs.values() if not event.ended])
