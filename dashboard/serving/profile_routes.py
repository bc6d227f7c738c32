"""`/api/v1/runs/{run}/profiles/{key}/trace`: the Chrome trace of a profile in this machine's spool.

No path is built from what a request says: run and key are looked up in listings of the folders.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse

from probe.delivery.journal.run_folders import list_runs
from probe.errors import JournalError
from probe.wire.profiles import FOLDER, TRACE_ENDING

PATH: Final = "/api/v1/runs/{run}/profiles/{key}/trace"


def add_profile_routes(server: FastAPI, spool: Path) -> None:
    """Add the route: 404 where the trace is not (any more) in the spool.

    Args:
        server: Gets it.
        spool: Root folder of the runs' folders.
    """

    @server.get(PATH, summary="The Chrome trace of a profile, compressed", response_class=FileResponse)
    def trace(run: str, key: str) -> FileResponse:
        found = find_trace(spool, run, key)
        if found is None:
            raise HTTPException(404, f"there is no trace {key!r} of run {run!r} in this machine's spool")
        name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{run}-{key}")
        return FileResponse(
            found,
            media_type="application/gzip",
            filename=f"nanscope-{name}{TRACE_ENDING}",
        )


def find_trace(spool: Path, run: str, key: str) -> Path | None:
    """Return the trace's file, none where there is none; links are not followed."""
    try:
        folders = [folder for folder in list_runs(spool) if folder.name == run]
        traces = [trace for folder in folders for trace in _files(folder / FOLDER)]
    except (JournalError, OSError):
        return None
    return next((trace for trace in traces if trace.name == f"{key}{TRACE_ENDING}"), None)


def _files(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
