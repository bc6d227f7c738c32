"""`dashboard export`: one run's journals, through a temporary store, into one file of a chosen format.

What people have written at its steps is in no journal: the dashboard's store is asked for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..errors import DashboardError, UnknownRunError
from ..export.html import PageTheme, export_html
from ..export.json import export_json
from ..export.table import export_table
from ..ingest.reading import read_runs
from ..runs import resolve_run
from ..store.duck import DuckStore
from .stored_notes import stored_notes

Format = Literal["html", "json", "csv", "parquet"]


def export_run(
    target: str,
    *,
    form: Format,
    output: Path,
    rank: int,
    theme: PageTheme,
    statistic: str,
    track: str | None,
    data: Path | None,
    notice: Callable[[str], None],
) -> None:
    """Write RUN|SPOOL to `output`, whole or not at all; works with no server running. "-" is stdout.

    `data` is the folder of the store that has the notes; None is that of the user's dashboard.

    Raises:
        DashboardError: the argument does not name one run, the run has no such rank or track, or the file
            cannot be written.
        BrokenPipeError: the reader of a pipe has gone.
    """
    run = resolve_run(target)
    with tempfile.TemporaryDirectory(prefix="nanscope-export-") as folder:
        store = DuckStore(Path(folder))
        try:
            ((_, report),) = read_runs(store, [run.path])
            if not store.runs():
                raise UnknownRunError(f"The journals in {run.path} hold nothing that can be read.")
            if form in ("html", "json"):
                _take_notes(store, run.run, data, notice)
            body = _exported(store, run.run, form, rank=rank, theme=theme, statistic=statistic, track=track)
        finally:
            store.close()
    if str(output) == "-":
        # UTF-8 whatever the terminal's encoding is: the document says so of itself.
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
    else:
        _replace(output, body)
    if report.missing:
        notice(f"Missing or damaged records of the journal: {report.missing:,}; the file says so.")


def _take_notes(store: DuckStore, run: str, data: Path | None, notice: Callable[[str], None]) -> None:
    """Copy the notes at the run's steps into the temporary store."""
    try:
        notes = stored_notes(run, data)
    except DashboardError as error:
        notice(
            f"Notes at steps are in the dashboard's store, not in the journals; the file has none: {error}."
        )
        return
    for note in notes:
        store.write_note(run, note)


def _exported(
    store: DuckStore,
    run: str,
    form: Format,
    *,
    rank: int,
    theme: PageTheme,
    statistic: str,
    track: str | None,
) -> bytes:
    if form == "html":
        return export_html(store, run, rank=rank, theme=theme, statistic=statistic, track=track).encode()
    if form == "json":
        document = export_json(store, run, rank=rank, statistic=statistic, track=track)
        return json.dumps(document, allow_nan=False).encode()
    return export_table(store, run, form, rank=rank, statistic=statistic, track=track)


def _replace(path: Path, body: bytes) -> None:
    """A reader of `path` sees the old file or the new one; a device such as /dev/stdout is written to."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(body)
        else:
            _write_whole(path, body)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DashboardError(
            f"Cannot write {path}: {error.strerror or error}; choose another file with -o."
        ) from error


def _write_whole(path: Path, body: bytes) -> None:
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        partial.write_bytes(body)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
