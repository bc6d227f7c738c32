"""Many numbers in a condition: the same rows as a list of them, and no more of the table read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from clickhouse_server import ClickHouseServer, what_is_missing

from dashboard.store.clickhouse.connection import Connections, parse_shards
from dashboard.store.clickhouse.numbers import FEW, among

pytestmark = pytest.mark.skipif(what_is_missing() is not None, reason=str(what_is_missing()))


@pytest.fixture
def database(clickhouse: ClickHouseServer) -> Iterator[Connections]:
    [[address]] = parse_shards(clickhouse.url("numbers"))
    database = Connections(address, clickhouse.password)
    database.create_database()
    yield database
    database.run("DROP DATABASE numbers")
    database.close()


def test_among_few_numbers_are_listed() -> None:
    assert among([3, 4]) == "timeline IN (3, 4)"
    assert among([3], "series") == "series IN (3)"
    assert "SELECT" not in among(range(FEW))


def test_among_many_numbers_finds_the_rows_of_a_list_by_the_key(database: Connections) -> None:
    database.run(
        "CREATE TABLE many (timeline Int64, step Int64) ENGINE = MergeTree() ORDER BY (timeline, step) "
        "SETTINGS index_granularity = 64"
    )
    timelines = np.random.default_rng(0).integers(0, 2**63 - 1, 1000)
    rows = {"timeline": np.repeat(timelines, 64), "step": np.tile(np.arange(64), 1000)}
    database.insert("many", rows)
    chosen = np.sort(timelines)[: FEW + 1].tolist()
    assert "SELECT" in among(chosen)
    client = database._client("numbers")
    [found] = client.execute(f"SELECT timeline FROM many WHERE {among(chosen)}", columnar=True)
    assert sorted(found.tolist()) == sorted(chosen * 64)
    assert client.last_query.progress.rows < 2 * 64 * len(chosen)
