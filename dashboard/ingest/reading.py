"""Reads runs into a store with a bar on the terminal: what `dashboard open` and `export` wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from probe.delivery.journal.segment_files import run_folder_bytes
from probe.wire.findings import size_text
from probe.wire.progress import Progress

from ..store.protocol import Store
from .spool import IngestReport, SpoolIngest


def read_runs(store: Store, folders: Sequence[Path]) -> Iterator[tuple[Path, IngestReport]]:
    """Read some runs' folders, even if helpers ship them elsewhere; yield each with what was read.

    Raises:
        DashboardError: the store does not take data.
    """
    total = sum(map(run_folder_bytes, folders))
    runs = "run" if len(folders) == 1 else f"{len(folders):,} runs"
    with Progress(f"Reading {runs}", total, amount_text=size_text) as progress:
        for folder in folders:
            yield folder, SpoolIngest(store, folder.parent, on_bytes=progress.advance).run_one(folder)


def unnamed_steps(store: Store, run: str) -> list[str]:
    """Return a sentence, without its stop, for each rank with steps whose parameters have no names."""
    return [f"Run {run}, rank {gap.rank}: {gap.reason}" for gap in store.gaps(run) if gap.is_partial]
