"""Ranks that are committed together are stored as each of them alone, wherever each has got to."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pytest
from store_reference import begin, make_frame

from dashboard.store import buckets
from dashboard.store.duck import DuckStore
from dashboard.store.schema import TABLES

TABLES_OF_STEPS = [
    name for name in TABLES if name.endswith(("_raw", "_pooled")) or name in ("progress", "kept")
]
RANKS = 7


def steps_of(rank: int, chance: random.Random) -> list[list[int]]:
    """Steps of a rank's commits: most ranks together, some elsewhere, some again."""
    first = 0 if rank < 4 else chance.choice([0, 5, 40, 100_000])
    parts, at = [], first
    for _ in range(6):
        count = 20 if rank < 4 else chance.randint(0, 60)
        parts.append(list(range(at, at + count)))
        at += count
        if rank == 2 or chance.random() < 0.2:
            at = max(first, at - chance.randint(1, 40))
    return parts


def frames(rank: int, steps: list[int], chance: random.Random) -> list[bytes]:
    def value() -> float:
        return chance.choice([chance.gauss(0, 1), chance.gauss(0, 1), float("nan"), float("inf")])

    return [
        make_frame(
            step, {"grad_norm": [value() for _ in range(3)]}, scalars={"loss": value(), f"a{rank}": 1.0}
        )
        for step in steps
    ]


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of the tables that steps go to; the last bits of a mean hang on the order of a sum."""
    with duckdb.connect(str(path), read_only=True) as database:
        found = {}
        for name in TABLES_OF_STEPS:
            fetched = database.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall()
            found[name] = [
                tuple(f"{value:.12g}" if isinstance(value, float) else value for value in row)
                for row in fetched
            ]
    return found


@pytest.mark.parametrize(("seed", "most"), [(0, 64), (1, 64), (2, 2)])
def test_ranks_committed_together_are_stored_as_each_alone(tmp_path, monkeypatch, seed, most):
    monkeypatch.setattr(buckets, "MOST_TIMELINES", most)
    together, alone = (
        DuckStore(tmp_path / "together", raw_steps=64),
        DuckStore(tmp_path / "alone", raw_steps=64),
    )
    parts = {rank: steps_of(rank, random.Random(f"{seed} {rank}")) for rank in range(RANKS)}
    keys = {rank: (begin(together, rank=rank), begin(alone, rank=rank))[0] for rank in parts}
    for number in range(6):
        for rank, key in keys.items():
            data = frames(rank, parts[rank][number], random.Random(f"{seed} {rank} {number}"))
            for store in (together, alone):
                store.append(key, sum(map(len, parts[rank][:number])), data)
            alone.commit()
        together.commit()
    for store in (together, alone):
        store.close()
    found, expected = rows(tmp_path / "together/nanscope.duckdb"), rows(tmp_path / "alone/nanscope.duckdb")
    assert found == expected
    assert all(len(found[name]) > 20 for name in ("scalar_pooled", "layer_pooled", "parameter_pooled"))
    assert len(found["progress"]) == 2 * RANKS
