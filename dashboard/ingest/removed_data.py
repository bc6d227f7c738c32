"""Whether the store's file is still there: loads DuckDB, which `storage` does not. On the spool's thread."""

from __future__ import annotations

from pathlib import Path

from ..store.schema import FILE_NAME


def removed_data(data: Path, *, store: str = "") -> str:
    """Say that the store's file was removed while it is open; empty where it is there, or is no file."""
    path = data / FILE_NAME
    if store or path.exists():
        return ""
    return (
        f"{path} was removed while this dashboard runs: what it receives now is lost when it ends. Start it "
        "again: it reads the runs that are still in the spool"
    )
