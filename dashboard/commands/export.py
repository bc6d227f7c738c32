"""`dashboard export`: one run's journals, through a temporary store, into a file or another tracker.

What people have written at its steps is in no journal: the dashboard's store is asked for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

from ..errors import DashboardError, UnknownRunError
from ..export.html import PageTheme, export_html
from ..export.json import export_json
from ..export.table import export_table
from ..export.trackers.mlflow_run import write_mlflow
from ..export.trackers.tensorboard_files import write_tensorboard
from ..export.trackers.tracked_run import require_package, tracked_run
from ..export.trackers.wandb_run import write_wandb
from ..ingest.reading import read_runs, unnamed_steps
from ..runs import RunFolder, lacks_records, no_such_member, resolve_run
from ..store.duck import DuckStore
from ..store.members import members_of
from .stored_notes import stored_notes

Format = Literal["html", "json", "csv", "parquet"]
Tracker = Literal["tensorboard", "wandb", "mlflow"]
ALL_STEPS_RAW: Final = 2**62
"""A tracker gets every step that the journals have."""


def export_run(
    target: str | None,
    *,
    form: Format,
    output: Path | None,
    rank: int,
    member: int | None = None,
    theme: PageTheme,
    statistic: str,
    track: str | None,
    data: Path | None,
    notice: Callable[[str], None],
) -> Path:
    """Write RUN|SPOOL to `output`, whole or not at all, and return where; works with no server running.

    "-" is stdout, and None a file in the current folder that is named after the run. `target` None is the
    newest run. `member` is the model where the run made several one after the other; None is the first.
    `data` is the folder of the store that has the notes; None is that of the user's dashboard.

    Raises:
        DashboardError: the argument does not name one run, the run has no such rank, model or track, or the
            file cannot be written.
        BrokenPipeError: the reader of a pipe has gone.
    """
    run = resolve_run(target)
    with _opened(run, notice) as store:
        shown = _member_of(store, run.run, member, notice)
        if form in ("html", "json"):
            _take_notes(store, shown, data, notice)
        body = _exported(store, shown, form, rank=rank, theme=theme, statistic=statistic, track=track)
    if output is None:
        output = Path(_name(shown, track, form))
    if str(output) == "-":
        # UTF-8 whatever the terminal's encoding is: the document says so of itself.
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
    else:
        _replace(output, body)
    return output


def _member_of(store: DuckStore, run: str, member: int | None, notice: Callable[[str], None]) -> str:
    """Return the id under which the store keeps one of the models that a run made."""
    models = members_of(store.runs(), run)
    if member is None and len(models) > 1:
        last = len(models) - 1
        notice(
            f"The run made {len(models):,} models; this is the first. "
            f"`--member N` exports another (0 to {last:,})."
        )
    number = member or 0
    if not 0 <= number < len(models):
        raise no_such_member(run, number, len(models))
    return models[number]


def _name(run: str, track: str | None, form: str) -> str:
    """``nanscope-RUN.html``; of one track ``nanscope-RUN-loss.csv``."""
    part = "" if track is None else "-" + re.sub(r"[^\w.-]", "_", track)
    return f"nanscope-{run}{part}.{form}"


def export_to_tracker(
    target: str | None,
    *,
    tracker: Tracker,
    folder: Path | None,
    rank: int,
    member: int | None = None,
    project: str,
    tracking_uri: str | None,
    notice: Callable[[str], None],
) -> str:
    """Write RUN|SPOOL for a tracker, and return where; works with no server running.

    Args:
        target: The run.
        tracker: Which one; its package has to be installed.
        folder: Where its files go; MLflow needs none where there is a tracking URI.
        rank: Rank whose numbers are written.
        member: Model whose numbers are written; None is the first.
        project: Project of wandb, or experiment of MLflow.
        tracking_uri: Of MLflow.
        notice: Gets what the user should know.

    Raises:
        DashboardError: the argument does not name one run, the run has no such rank or model, the tracker's
            package is missing or refuses, or there is no folder.
    """
    if folder is None and tracker != "mlflow":
        raise DashboardError(f"--format {tracker} needs a folder: -o FOLDER")
    if folder is not None and (str(folder) == "-" or (folder.exists() and not folder.is_dir())):
        raise DashboardError(f"--format {tracker} writes a folder; {folder} is none")
    require_package(tracker, extra=tracker)
    run = resolve_run(target)
    with _opened(run, notice) as store:
        shown = _member_of(store, run.run, member, notice)
        tracked = tracked_run(store, shown, rank=rank)
        if tracker == "mlflow":
            report = export_html(store, shown, rank=rank)
            return write_mlflow(
                tracked, tracking_uri=tracking_uri, folder=folder, project=project, report=report
            )
        assert folder is not None
        if tracker == "wandb":
            return str(write_wandb(tracked, folder, project=project))
        return str(write_tensorboard(tracked, folder))


@contextlib.contextmanager
def _opened(run: RunFolder, notice: Callable[[str], None]) -> Iterator[DuckStore]:
    """A temporary store that holds the run whole."""
    with tempfile.TemporaryDirectory(prefix="nanscope-export-") as folder:
        store = DuckStore(Path(folder), raw_steps=ALL_STEPS_RAW)
        try:
            ((_, report),) = read_runs(store, [run.path])
            if not store.runs():
                raise UnknownRunError(f"The journals in {run.path} hold nothing that can be read.")
            said = [*report.odd_files, *unnamed_steps(store, run.run)]
            yield store
        finally:
            store.close()
    for sentence in said:
        notice(f"{sentence}.")
    if report.missing:
        notice(f"The journal {lacks_records(report.missing)}; the file says so.")


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
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
