"""Keeps a profile with its run: trace beside the journal, document in it, an event that says where."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ...guard import let_pass, suppressed
from ...settings.places import write_private_file
from ...wire.documents import make_document
from ...wire.profiles import FOLDER, KIND, TRACE_ENDING, ProfileBody
from .profile_body import MadeProfile

if TYPE_CHECKING:
    from .profile_parts import ProfileParts

MOST_TRACES: Final = 20
"""Of a run; the oldest go first. They count to the cap of the spool like everything in the run's folder."""


def keep_profile(parts: ProfileParts, made: MadeProfile, name: str) -> ProfileBody:
    """Write the trace, the document and the event of a profile.

    Args:
        parts: of the session.
        made: the profile.
        name: of the trace's file, without the rank and the ending.

    Returns:
        The document's body, with the trace's name.
    """
    folder = parts.recorder.folder.parent / FOLDER
    rank = parts.recorder.folder.name.partition("-")[0]
    key = _free_key(folder, name if rank == "0" else f"{name}-rank{rank}")
    body, where = made.body, ""
    try:
        packed = gzip.compress(made.trace, 6)
        path = folder / f"{key}{TRACE_ENDING}"
        write_private_file(path, packed)
    except OSError as error:
        let_pass(error)
        problem = f"The trace could not be written: {error.strerror or error}."
        body = msgspec.structs.replace(body, notes=[*body.notes, problem])
    else:
        body = msgspec.structs.replace(body, trace=path.name, trace_bytes=len(packed))
        where = f"\nChrome trace (opens in https://ui.perfetto.dev): {path}"
        _remove_oldest(folder)
    now = time.time()
    last = None if body.first_step is None else body.first_step + body.steps - 1
    parts.recorder.document(make_document(body, kind=KIND, key=key, step=last, time=now))
    parts.incidents.note(
        "profile",
        f"profile {key}",
        f"{_title(body, last)}{_found(body)}{where}",
        step=last or 0,
        time=now,
        value=body.wall_s,
    )
    return body


def _title(body: ProfileBody, last: int | None) -> str:
    if body.asked_steps is None or last is None:
        steps = "A block was profiled"
    elif body.steps == 1:
        steps = f"Step {last} was profiled"
    else:
        steps = f"Steps {body.first_step} to {last} were profiled"
    return f"{steps}, asked for by {body.asked_by}"


def _found(body: ProfileBody) -> str:
    return "".join(f"\n{text}" for text in (*(one.message for one in body.findings), *body.notes))


def _free_key(folder: Path, name: str) -> str:
    """A name that no trace has: a later start of the run counts its steps anew."""
    key, number = name, 1
    while (folder / f"{key}{TRACE_ENDING}").exists():
        number += 1
        key = f"{name}-{number}"
    return key


def _remove_oldest(folder: Path) -> None:
    with suppressed(OSError):
        traces = sorted(folder.glob(f"*{TRACE_ENDING}"), key=lambda path: path.stat().st_mtime)
        for path in traces[:-MOST_TRACES]:
            path.unlink(missing_ok=True)
