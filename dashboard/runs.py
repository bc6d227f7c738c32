"""Turns the command line's RUN|SPOOL argument into run folders, and reads events from their journals.

Offline: opens no store and asks no server. Called by the commands; imports nothing heavy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from probe.delivery.journal.journal_reader import Skipped, list_runs, list_writers, read_run_json, read_stream
from probe.errors import BundleError, JournalError, WireError
from probe.settings.places import default_spool, read_serve_state
from probe.wire import Event, StreamName, decode_record
from probe.wire.bundle_format import DESCRIPTION, SPOOL, check_folder

from .errors import NotASpoolError, UnknownRunError
from .page.views.event_facts import event_order

_SHOWN_RUNS = 8
_WRITER = re.compile(r"\d+-\d+\Z|host-")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run in a spool, by its `run.json`."""

    path: Path
    run: str
    name: str
    started: float
    """UNIX seconds; 0 when `run.json` is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEvents:
    """The events of some journals in their latest state, by step and time."""

    events: tuple[Event, ...]
    unreadable: int
    """Records that are missing, damaged or do not decode: counted, never fatal."""


def resolve_runs(argument: str, *, spool: Path | None = None) -> list[RunFolder]:
    """Return the runs that RUN|SPOOL means, oldest first; an empty folder is an empty spool.

    Args:
        argument: A spool, a bundle, a run's folder in a spool, a run's id, a unique prefix of one, or a name.
        spool: Where ids and names are looked up; None takes the default place.

    Raises:
        NotASpoolError: it is a path, but of something else.
        UnknownRunError: no run, or more than one, answers to it.
    """
    path = Path(argument).expanduser()
    if (path / DESCRIPTION).is_file():
        try:
            check_folder(path)
        except BundleError as error:
            raise NotASpoolError(str(error)) from error
        path /= SPOOL
    if path.is_dir():
        return _runs_in(path)
    if path.is_absolute() or os.sep in argument:
        problem = "is a file" if path.exists() else "does not exist"
        raise NotASpoolError(f"{path} {problem}; give a spool's folder, or a run's id or name.")
    return [_find_run(argument, default_spool() if spool is None else spool)]


def require_spool(chosen: Path | None) -> None:
    """Refuse a `--spool` (or, without one, a default place) that is no spool; one may be missing still.

    Raises:
        NotASpoolError: it is a file, or a folder of other things.
    """
    if chosen is not None and chosen.exists():
        resolve_runs(str(chosen.resolve()))
    elif chosen is None:
        _require_folder(default_spool())


def _require_folder(spool: Path) -> None:
    if spool.exists() and not spool.is_dir():
        raise NotASpoolError(f"The spool {spool} is a file; set NANSCOPE_SPOOL to a folder.")


def resolve_run(argument: str, *, spool: Path | None = None) -> RunFolder:
    """Return the one run that RUN|SPOOL means.

    Raises:
        NotASpoolError: it is a path, but of something else.
        UnknownRunError: no run, or more than one, answers to it.
    """
    runs = resolve_runs(argument, spool=spool)
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise UnknownRunError(f"{argument} is an empty spool; give one that holds a run.")
    raise UnknownRunError(
        f"{argument} holds {len(runs)} runs; give the folder of one, for instance {runs[-1].path} "
        f"({_names(runs)})."
    )


def read_events(folders: Sequence[Path]) -> JournalEvents:
    """Read the latest state of every event of some run folders, by step, then time."""
    latest: dict[str, Event] = {}
    holes: list[Skipped] = []
    undecodable = 0
    for writer in (writer for folder in folders for writer in list_writers(folder)):
        stream: StreamName = "host" if writer.name.startswith("host-") else "events"
        for _, data in read_stream(writer, stream, on_skip=holes.append):
            try:
                record = decode_record(data)
            except WireError:
                undecodable += 1
                continue
            if isinstance(record, Event):
                latest[record.id] = record
    events = sorted(latest.values(), key=event_order)
    missing = sum(hole.end_seq - hole.first_seq for hole in holes)
    return JournalEvents(events=tuple(events), unreadable=missing + undecodable)


def _runs_in(path: Path) -> list[RunFolder]:
    """The runs of a spool, or the run whose folder `path` itself is."""
    if _is_run_folder(path):
        return [_describe(path.resolve())]
    try:
        folders = [folder for folder in list_runs(path) if _is_run_folder(folder)]
    except JournalError as error:
        raise NotASpoolError(f"{error}; give a spool's folder.") from error
    if not folders and not all(map(_may_be_in_a_spool, path.iterdir())):
        raise NotASpoolError(
            f"{path} is not a spool: it holds other things, but no run; give a spool's folder."
        )
    return sorted(map(_describe, folders), key=lambda run: (run.started, run.run))


def _may_be_in_a_spool(path: Path) -> bool:
    """Something hidden, or the folder of a run that has written nothing yet, not even into its writers'."""
    if path.name.startswith("."):
        return True
    return path.is_dir() and all(
        _WRITER.match(child.name) and child.is_dir() and not any(child.iterdir()) for child in path.iterdir()
    )


def _is_run_folder(path: Path) -> bool:
    return (path / "run.json").is_file() or any(path.glob("*/*.seg"))


def _describe(folder: Path) -> RunFolder:
    start = read_run_json(folder)
    return RunFolder(
        path=folder,
        run=folder.name,
        name=start.name if start else "",
        started=start.time if start else 0.0,
    )


def _find_run(argument: str, spool: Path) -> RunFolder:
    """Look up an id, then a name (the newest run that has it), then a unique prefix of an id."""
    _require_folder(spool)
    runs = _runs_in(spool) if spool.is_dir() else []
    if exact := [run for run in runs if run.run == argument]:
        return exact[0]
    if named := [run for run in runs if run.name == argument]:
        return named[-1]
    prefixed = [run for run in runs if argument and run.run.startswith(argument)]
    if len(prefixed) == 1:
        return prefixed[0]
    if prefixed:
        raise UnknownRunError(
            f"{argument!r} begins the ids of {len(prefixed)} runs: {_names(prefixed)}; give more of it."
        )
    raise UnknownRunError(_unknown(argument, spool, runs))


def _unknown(argument: str, spool: Path, runs: Sequence[RunFolder]) -> str:
    nothing = "it is empty" if spool.exists() else "it does not exist yet"
    held = f"it holds {_names(runs)}" if runs else nothing
    hint = (
        "give one of these, or a spool's folder" if runs else "give a spool's folder, or set NANSCOPE_SPOOL"
    )
    state = read_serve_state()
    elsewhere = f" The dashboard at {state.page} may know runs that are no longer here." if state else ""
    return f"No run in {spool} has the id or name {argument!r} ({held}); {hint}.{elsewhere}"


def _names(runs: Sequence[RunFolder]) -> str:
    shown = [f"{run.run} ({run.name})" if run.name else run.run for run in runs[-_SHOWN_RUNS:]]
    more = [f"{len(runs) - len(shown):,} more"] if len(runs) > len(shown) else []
    return ", ".join([*shown, *more])
