"""How much room the spool and the store take, in one line for the page. Called on the spool's thread."""

from __future__ import annotations

from pathlib import Path

from probe.delivery.spool_care import cap_bytes, last_removal, rooms
from probe.wire.findings import size_text


def storage_line(spool: Path, data: Path, *, store: str = "") -> str:
    """Return the sizes, the spool's cap, and what the cap has deleted last.

    Args:
        spool: Its folder.
        data: Folder of the store's file.
        store: Where the store is, if it is not that file.
    """
    removal = last_removal(spool)
    size = sum(path.stat().st_size for path in data.glob("nanscope.duckdb*") if path.is_file())
    line = f"{spool_size(spool)}; store {store or size_text(size)}. dashboard clean deletes runs."
    return f"{line} {removal}." if removal else line


def spool_size(spool: Path) -> str:
    """Return what all runs of a spool take together, and its cap."""
    found = rooms(spool)
    size = size_text(sum(room.size_bytes for room in found))
    runs = "run" if len(found) == 1 else "runs"
    return f"Spool {size} in {len(found):,} {runs} of at most {size_text(cap_bytes())}"
