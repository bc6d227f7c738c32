"""`dashboard open`: the page over a finished spool or a bundle, on a store that leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..errors import UnknownRunError
from ..ingest.reading import read_runs, unnamed_steps
from ..runs import RunFolder, lacks_records, problem_lines, resolve_runs
from ..serving.running import STORE_VARIABLE
from ..serving.serve import serve
from ..store.duck import DuckStore


def open_spool(
    spool: str,
    *,
    host: str,
    port: int,
    ingest: str,
    open_browser: bool,
    announce: Callable[[str], None],
    notice: Callable[[str], None],
) -> None:
    """Read a spool, a bundle, or one run's folder in a spool, and serve it until Ctrl-C.

    A state folder of its own keeps running trainings from taking this server for the user's real one. Its
    store is a file of its own, whatever the environment says.

    Raises:
        DashboardError: it is neither, it is empty, or the server cannot start.
    """
    runs = resolve_runs(spool)
    if not runs:
        raise UnknownRunError(f"{spool} is an empty spool; give one that holds a run.")
    for line in problem_lines(runs, spool=runs[0].path.parent):
        notice(line)
    is_whole_spool = Path(spool).expanduser().resolve() == runs[0].path.parent.resolve()
    with tempfile.TemporaryDirectory(prefix="nanscope-open-") as folder:
        _fill(Path(folder) / "data", runs, notice=notice)
        serve(
            host=host,
            port=port,
            ingest=ingest,
            data=Path(folder) / "data",
            spool=runs[0].path.parent,
            only=None if is_whole_spool else {run.run for run in runs},
            open_browser=open_browser,
            announce=announce,
            environment={**os.environ, "XDG_STATE_HOME": folder, STORE_VARIABLE: ""},
        )


def _fill(data: Path, runs: list[RunFolder], *, notice: Callable[[str], None]) -> None:
    store = DuckStore(data)
    try:
        reports = {path.name: report for path, report in read_runs(store, [run.path for run in runs])}
        for run, report in reports.items():
            if report.missing:
                notice(f"The journal of {run} {lacks_records(report.missing)}.")
            for said in (*report.odd_files, *unnamed_steps(store, run)):
                notice(f"{said}.")
    finally:
        store.close()
