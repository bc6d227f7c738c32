"""Documents of the runs (`probe.wire.Document`): memory snapshots, profiles, times of regions.

Of each (rank, incarnation, kind, key) the newest is kept. Called by `DuckStore` and by its writer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb

from probe.wire import Document

from .protocol import StoredDocument
from .queries import Snapshot

_COLUMNS: Final = "run, rank, incarnation, kind, key, step, time, data"


def read_documents(
    snapshot: Snapshot, run: str, kind: str, *, rank: int | None = None
) -> list[StoredDocument]:
    """Return a run's documents of a kind by time, uncommitted ones too; of all ranks where none is given."""
    latest: dict[tuple[str, int, int, str, str], StoredDocument] = {}
    for row in snapshot.rows.documents(run, kind):
        found = _of_row(row)
        latest[found.identity] = found
    for item in snapshot.edge:
        for found in item.documents:
            if (found.run, found.document.kind) == (run, kind):
                latest[found.identity] = found
    wanted = [found for found in latest.values() if rank in (None, found.rank)]
    return sorted(wanted, key=lambda found: (found.document.time, found.rank, found.document.key))


def document_kinds(snapshot: Snapshot, run: str) -> list[str]:
    """Return the kinds of a run's documents, sorted; uncommitted ones too."""
    kinds = set(snapshot.rows.document_kinds(run))
    kinds |= {one.document.kind for item in snapshot.edge for one in item.documents if one.run == run}
    return sorted(kinds)


def document_sizes(snapshot: Snapshot, run: str) -> list[tuple[object, int]]:
    """Return identity and bytes of the body of each document of a run, uncommitted ones too."""
    sizes: dict[object, int] = {tuple(row[:5]): row[5] for row in snapshot.rows.document_sizes(run)}
    for item in snapshot.edge:
        for found in item.documents:
            if found.run == run:
                sizes[found.identity] = len(found.document.body)
    return list(sizes.items())


def write_documents(database: duckdb.DuckDBPyConnection, documents: Sequence[StoredDocument]) -> None:
    """Save the newest of each identity, inside the caller's transaction."""
    for found in {found.identity: found for found in documents}.values():
        where = "run = ? AND rank = ? AND incarnation = ? AND kind = ? AND key = ?"
        database.execute(f"DELETE FROM documents WHERE {where}", [*found.identity])
        document = found.document
        row = [*found.identity, document.step, document.time, document.body]
        database.execute(f"INSERT INTO documents ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)", row)


def _of_row(row: tuple[object, ...]) -> StoredDocument:
    run, rank, incarnation, kind, key, step, time, data = row
    assert isinstance(rank, int) and isinstance(incarnation, int) and isinstance(time, float)
    assert isinstance(data, bytes) and (step is None or isinstance(step, int))
    document = Document(kind=str(kind), key=str(key), step=step, time=time, body=data)
    return StoredDocument(run=str(run), rank=rank, incarnation=incarnation, document=document)
