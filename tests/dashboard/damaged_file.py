"""Damages the blocks of one table of a data file, so that it shows when its rows are read."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb

BLOCK, HEADERS = 262_144, 12_288


def damage_table(path: Path, table: str) -> int:
    """Overwrite the middle of every block that holds rows of a table; return how many."""
    with duckdb.connect(str(path), read_only=True) as database:
        query = f"SELECT DISTINCT block_id FROM pragma_storage_info('{table}') WHERE block_id >= 0"
        blocks = [number for (number,) in database.execute(query).fetchall()]
    with path.open("r+b") as file:
        for block in blocks:
            file.seek(HEADERS + block * BLOCK + 1000)
            file.write(os.urandom(500))
    return len(blocks)
