"""Turns the command line's RUN|SPOOL argument into run folders, and reads events from their journals.

Offline: opens no store and asks no server. Called by the commands; imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import msgspec

from probe.delivery.journal.journal_reader import Skipped, missing_at_end, read_stream
from probe.delivery.journal.run_folders import (
    list_runs,
    list_writers,
    read_run_json,
    run_problem,
    unreadable_runs,
)
from probe.delivery.visible_text import visible_text
from probe.errors import BundleError, JournalError, WireError
from probe.settings.places import default_spool, read_serve_state
from probe.wire import Event, RunEnd, RunStart, StreamName, decode_record, member_number, member_run
from probe.wire.bundle_format import DESCRIPTION, SPOOL, check_folder

from .errors import NotASpoolError, UnknownRunError
from .page.views.event_facts import event_order

_SHOWN_RUNS, _LISTED_RUNS = 5, 40
_CELL = re.compile(r" \[\d+\]\Z")
_WRITER = re.compile(r"\d+-\d+\Z|host-")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run in a spool, by its `run.json`."""

    path: Path
    run: str
    name: str
    started: float
    """UNIX seconds; 0 when `run.json` is missing."""
    group: str
    """The same for the models of one training."""
    model: str
    """What the training calls it; empty where an older probe has written it."""
    problem: str = ""
    """Why `run.json` cannot be read; empty where it can, or is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEvents:
    """The events of some journals in their latest state, by step and time."""

    events: tuple[Event, ...]
    unreadable: int
    """Records that are missing, damaged or do not decode: counted, never fatal."""
    missing_steps: int = 0
    """Records of steps that are missing at the end of a journal: the rest of the steps is not read."""
    odd_files: tuple[str, ...] = ()
    """Files that were passed over; sentences."""
    ended: frozenset[Path] = frozenset()
    """Folders of the starts that have ended in order."""
    models: int = 1
    """Most that a run of these has made one after the other."""


def resolve_runs(argument: str | None, *, spool: Path | None = None) -> list[RunFolder]:
    """Return the runs that RUN|SPOOL means, oldest first; an empty folder is an empty spool.

    The id of a training's first run and its name mean the runs of all its models.

    Args:
        argument: A spool, a bundle, a run's folder in a spool, a run's id, a unique prefix of one, or a name,
            for which a script's file stands too. None means the newest training.
        spool: Where ids and names are looked up; None takes the default place.

    Raises:
        NotASpoolError: it is a path, but of something else.
        UnknownRunError: no run, or more than one, answers to it.
    """
    looked_up = default_spool() if spool is None else spool
    if argument is None:
        return _find_newest(looked_up)
    path = Path(argument).expanduser()
    if (path / DESCRIPTION).is_file():
        try:
            check_folder(path)
        except BundleError as error:
            raise NotASpoolError(str(error)) from error
        path /= SPOOL
    is_path = path.is_absolute() or os.sep in argument
    if path.is_dir():
        try:
            return _runs_in(path)
        except NotASpoolError:
            # A folder that only has the name of a script.
            named = [] if is_path else _find_named(argument, _runs_of(looked_up))
            if not named:
                raise
            return named
    if path.suffix == ".py" and path.is_file():
        argument = path.name
    elif is_path:
        problem = "is a file" if path.exists() else "does not exist"
        raise NotASpoolError(f"{path} {problem}; give a spool's folder, or a run's id or name.")
    return _find_runs(argument, looked_up)


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


def resolve_run(argument: str | None, *, spool: Path | None = None) -> RunFolder:
    """Return the one run that RUN|SPOOL means; of a model that was trained several times, the newest.

    None means the newest training.

    Raises:
        NotASpoolError: it is a path, but of something else.
        UnknownRunError: no run, or more than one, answers to it.
    """
    runs = resolve_runs(argument, spool=spool)
    if not runs:
        raise UnknownRunError(f"{argument} is an empty spool; give one that holds a run.")
    given = None if argument is None else Path(argument).expanduser().resolve()
    if exact := [run for run in runs if len(runs) == 1 or run.run == argument or run.path == given]:
        return exact[0]
    if len({run.group for run in runs}) == 1:
        if len({(run.name, run.model) for run in runs}) == 1:
            return runs[-1]
        raise UnknownRunError(
            f"{argument or 'The newest run'} is a training of several models; give the id of one:\n"
            + "\n".join(run_lines(runs))
        )
    raise UnknownRunError(
        f"{argument} holds {len(runs)} runs; give the folder of one, for instance {runs[-1].path} "
        f"({_names(runs)})."
    )


def no_such_member(run: str, member: int, models: int) -> UnknownRunError:
    """The error of somebody who asks for a model that a run does not have; it has so many."""
    if models == 1:
        return UnknownRunError(f"The run {run} has one model; leave `--member {member}` out.")
    return UnknownRunError(
        f"The run {run} has no model {member}; choose one from 0 to {models - 1:,} with `--member`."
    )


def lacks_records(count: int) -> str:
    """Say of a journal that so many records are not in it, and why that may be."""
    return f"lacks {count:,} record{'s' * (count != 1)} (deleted at its cap, lost or damaged)"


def problem_lines(runs: Sequence[RunFolder], *, spool: Path | None = None) -> Iterator[str]:
    """A sentence for each run whose description cannot be read, and for each folder that is passed over.

    Args:
        runs: that are shown all the same, under their ids.
        spool: whose folders that cannot be read are named too; None names none.
    """
    for run in runs:
        if run.problem:
            yield printable(f"Run {run.run}: {run.problem}; it is shown under its id.")
    for name, reason in ({} if spool is None else unreadable_runs(spool)).items():
        yield printable(f"{name} is passed over: {reason}.")


def run_lines(runs: Sequence[RunFolder]) -> Iterator[str]:
    """A line for each of the newest: the id, what it is of, and when it began."""
    if len(runs) > _LISTED_RUNS:
        yield f"  {len(runs) - _LISTED_RUNS:,} older ones"
    for run in runs[-_LISTED_RUNS:]:
        called = run.name if not run.model or f"({run.model})" in run.name else f"{run.name} ({run.model})"
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started)) if run.started else "?"
        yield printable(f"  {run.run}  {called or '?'}  {began}")


def printable(text: str) -> str:
    """Text of a run on one line of a terminal, which would obey its control characters: they are marked."""
    return visible_text(text)


def read_events(folders: Sequence[Path]) -> JournalEvents:
    """Read the latest state of every event of some run folders, by step, then time."""
    latest: dict[str, Event] = {}
    members: dict[str, int] = {}
    holes: list[Skipped] = []
    of_steps: list[Skipped] = []
    ended: set[Path] = set()
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
            elif isinstance(record, RunStart) and record.member:
                members[record.run] = max(members.get(record.run, 0), record.member + 1)
            elif isinstance(record, RunEnd):
                ended.add(writer)
        of_steps += missing_at_end(writer, "metrics")
    # Of several models the first has a number, too, once others have come.
    numbered = (_numbered(event) if event.run in members else event for event in latest.values())
    events = sorted(numbered, key=event_order)
    missing = sum(hole.end_seq - hole.first_seq for hole in holes)
    return JournalEvents(
        events=tuple(events),
        unreadable=missing + undecodable,
        missing_steps=sum(hole.end_seq - hole.first_seq for hole in of_steps),
        odd_files=tuple(hole.reason for hole in (*holes, *of_steps) if hole.first_seq == hole.end_seq),
        ended=frozenset(ended),
        models=max(members.values(), default=1),
    )


def _numbered(event: Event) -> Event:
    return msgspec.structs.replace(event, member=member_number(event.member))


def _runs_in(path: Path) -> list[RunFolder]:
    """The runs of a spool, or the run whose folder `path` itself is, with the models that began after it."""
    if _is_run_folder(path):
        run = _describe(path.resolve())
        return _group_of(run, _runs_of(run.path.parent)) or [run]
    runs = _runs_of(path)
    if not runs and not all(map(_may_be_in_a_spool, path.iterdir())):
        raise NotASpoolError(
            f"{path} is not a spool: it holds other things, but no run; give a spool's folder."
        )
    return runs


def _runs_of(spool: Path) -> list[RunFolder]:
    """Every run of a spool, oldest first; none where there is no such folder."""
    if not spool.is_dir():
        return []
    try:
        folders = [folder for folder in list_runs(spool) if _is_run_folder(folder)]
    except JournalError as error:
        raise NotASpoolError(f"{error}; give a spool's folder.") from error
    return sorted(map(_describe, folders), key=lambda run: (run.started, run.run))


def _may_be_in_a_spool(path: Path) -> bool:
    """Something hidden, or the folder of a run that has written nothing yet, not even into its writers'."""
    if path.name.startswith("."):
        return True
    try:
        return path.is_dir() and all(
            _WRITER.match(child.name) and child.is_dir() and not any(child.iterdir())
            for child in path.iterdir()
        )
    except OSError:
        return True  # it is said that it cannot be read


def _is_run_folder(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return (path / "run.json").is_file() or any(path.glob("*/*.seg"))
    return False


def _describe(folder: Path) -> RunFolder:
    start = read_run_json(folder)
    return RunFolder(
        path=folder,
        run=folder.name,
        name=start.name if start else "",
        started=start.time if start else 0.0,
        group=start.group if start and start.group else folder.name,
        model=start.model if start else "",
        problem="" if start else run_problem(folder) or "",
    )


def _find_runs(argument: str, spool: Path) -> list[RunFolder]:
    """Look up an id, then a name (the newest training that has it), then a unique prefix of an id."""
    _require_folder(spool)
    runs = _runs_of(spool)
    if exact := [run for run in runs if run.run == argument]:
        return _group_of(exact[0], runs) or exact
    if named := _find_named(argument, runs):
        return named
    prefixed = [run for run in runs if argument and run.run.startswith(argument)]
    # The id of a further model begins with that of the first.
    if together := [run for run in prefixed if len(_group_of(run, runs)) >= len(prefixed)]:
        return _group_of(together[0], runs)
    if len(prefixed) == 1:
        return prefixed
    if prefixed:
        raise UnknownRunError(
            f"{argument!r} begins the ids of {len(prefixed)} runs: {_names(prefixed)}; give more of it."
        )
    raise UnknownRunError(_unknown(argument, spool, runs))


def _find_newest(spool: Path) -> list[RunFolder]:
    """All models of the training that began last."""
    _require_folder(spool)
    runs = _runs_of(spool)
    if not runs:
        raise UnknownRunError(f"No run in {spool} yet; record one with `dashboard run SCRIPT`.")
    return [run for run in runs if run.group == runs[-1].group]


def _group_of(run: RunFolder, runs: Sequence[RunFolder]) -> list[RunFolder]:
    """All runs of the training that `run` is the first of; empty where it is not."""
    return [other for other in runs if other.group == run.run] if run.group == run.run else []


def _find_named(argument: str, runs: Sequence[RunFolder]) -> list[RunFolder]:
    """The models of the newest training that has the name, or else whose script has it without ".py"."""
    named = [run for run in runs if run.name == argument] or [
        run for run in runs if _answers_to(run, argument)
    ]
    newest = named[-1].group if named else None
    return [run for run in runs if run.group == newest and (run in named or _answers_to(run, argument))]


def _answers_to(run: RunFolder, argument: str) -> bool:
    """By its whole name, that of its script or of its notebook, each with or without its ending."""
    # Names of scripts may hold brackets of their own: only what the launch has added comes off.
    script = run.name.removesuffix(f" ({run.model})") if run.model else run.name.partition(" (")[0]
    script = _CELL.sub("", script)
    short = script.removesuffix(".py").removesuffix(".ipynb")
    tail = run.name.removeprefix(script)
    return bool(argument) and argument in {script, short, f"{short}.py", f"{script}{tail}", f"{short}{tail}"}


def _unknown(argument: str, spool: Path, runs: Sequence[RunFolder]) -> str:
    """What to do next: the nearest name, and the newest runs."""
    said = [f"No run called {argument!r} in {spool}"]
    if of_model := _member_meant(argument, runs):
        return f"{said[0]}. {of_model}"
    if near := _nearest(argument, runs):
        said.append(f"Did you mean {near}?")
    if runs:
        said.append(f"Newest runs: {_names(runs)}")
    else:
        said[0] += ": it is empty" if spool.exists() else ": it does not exist yet"
        said.append("Give a spool's folder, or set NANSCOPE_SPOOL")
    if (state := read_serve_state()) is not None:
        said.append(f"The dashboard at {state.page} may know runs that are no longer here")
    return " ".join(part if part.endswith("?") else f"{part}." for part in said)


def _member_meant(argument: str, runs: Sequence[RunFolder]) -> str:
    """How commands name the model that the page lists under an id of its own; empty where none has it."""
    number = argument.rpartition(".m")[2]
    found = [run.run for run in runs if number.isdecimal() and member_run(run.run, int(number)) == argument]
    if not found:
        return ""
    run, member = printable(shlex.quote(found[-1])), int(number)
    asked = f"give {run}, and `--member {member}` to `dashboard events`, `export` or `diff`."
    return f"It is model {member + 1:,} of the run {run}: {asked}"


def _nearest(argument: str, runs: Sequence[RunFolder]) -> str:
    """The name or id that was probably meant, as it can be given; empty where none is near.

    The page shows the end of an id.
    """
    ended = [run.run for run in runs if argument and run.run.endswith(argument)]
    known = {name.lower(): name for run in runs for name in (run.run, run.name) if name}
    near = get_close_matches(argument.lower(), known, n=1)
    found = ended[-1:] or [known[each] for each in near]
    return printable(shlex.quote(found[0])) if found else ""


def _names(runs: Sequence[RunFolder]) -> str:
    shown = [printable(f"{run.run} ({run.name})" if run.name else run.run) for run in runs[-_SHOWN_RUNS:]]
    more = [f"{len(runs) - len(shown):,} more"] if len(runs) > len(shown) else []
    return ", ".join([*shown, *more])
