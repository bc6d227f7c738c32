"""Lists runs, stars them, and deletes them from store and spool; never one that is still written.

Called by routes, by the page and by `dashboard clean`, on their threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from probe.delivery.spool_care import STARRED, is_written, remove_run_folder
from probe.wire.records import RunId

from ..callers import require_control
from ..errors import DashboardError
from ..store.members import members_of
from ..store.protocol import RunMark, RunSummary, Store
from ..store.run_row import RunRow


def run_state(run: RunSummary) -> str:
    """Return the word for all ranks together: running where one of them is."""
    states = {rank.state for rank in run.ranks}
    return "running" if "running" in states else next(iter(sorted(states)), "silent")


def run_rows(store: Store) -> list[RunRow]:
    """Return a line a run, newest first."""
    marks = store.marks()
    return [run_row(run, marks.get(run.run, RunMark())) for run in store.runs()]


def run_row(run: RunSummary, mark: RunMark) -> RunRow:
    """Return a run as a list shows it."""
    return RunRow(
        run=run.run,
        name=run.name,
        started=run.started,
        written=max((rank.last_time or 0.0 for rank in run.ranks), default=0.0) or run.started,
        state=run_state(run),
        group=run.start.group or run.recorded_as,
        member=run.member,
        starred=mark.starred,
        note=mark.note,
    )


def remove_runs(store: Store, wanted: Sequence[str], *, spool: Path | None = None) -> dict[str, str]:
    """Delete runs; return those that stay, with the reason. What is not there is no failure.

    Args:
        store: Has them.
        wanted: Their ids.
        spool: Their folders there are deleted first, or they would be read in again; None leaves journals.

    Raises:
        ViewOnlyError: who asks may only look.
    """
    require_control()
    known = store.runs()
    running = {run.run for run in known if run_state(run) == "running"}
    refused = {}
    for run in wanted:
        members = members_of(known, run)
        is_running = not running.isdisjoint(members)
        reason = "it is still being written" if is_running else _remove_folder(spool, run)
        if reason:
            refused[run] = reason
        else:
            for member in members:
                store.remove_run(member)
    return refused


def spool_folder(spool: Path | None, run: str) -> Path | None:
    """Return a run's folder in a spool; None where there is none. Only a run's id can name one."""
    if spool is None:
        return None
    try:
        folder = spool / msgspec.convert(run, RunId)
    except msgspec.ValidationError:
        return None
    return folder if folder.is_dir() and not folder.is_symlink() else None


def star_run(store: Store, spool: Path | None, run: str, *, starred: bool) -> None:
    """Keep a run whatever the spool's cap says, or no longer.

    Raises:
        DashboardError: the file in its folder cannot be written or deleted.
        ViewOnlyError: who asks may only look.
    """
    require_control()
    folder = spool_folder(spool, run)
    if folder is not None:
        try:
            if starred:
                (folder / STARRED).touch(mode=0o600)
            else:
                (folder / STARRED).unlink(missing_ok=True)
        except OSError as error:
            raise DashboardError(f"cannot mark {folder}: {error.strerror or error}") from error
    store.mark_run(run, starred=starred)


def _remove_folder(spool: Path | None, run: str) -> str:
    """Delete a run's folder; return why it stays, "" where nothing is left of it."""
    folder = spool_folder(spool, run)
    if folder is None:
        return ""
    if is_written(folder):
        return "it is still being written"
    try:
        remove_run_folder(folder)
    except OSError as error:
        return f"its folder {folder} cannot be deleted: {error.strerror or error}"
    return ""
