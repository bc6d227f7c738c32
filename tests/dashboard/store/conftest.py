"""Stores of every engine, for tests of what they have in common."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clickhouse_server import replicas_url
from store_engines import ENGINES, OpenStore


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a file run with its `STORES`, those of others with one store of each engine."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    has_own = hasattr(metafunc.module, "engine")
    if "engine" in metafunc.fixturenames and "engine" not in chosen and not has_own:
        chosen_one = metafunc.config.getoption("--store-engine")
        engines = [chosen_one] if chosen_one else getattr(metafunc.module, "STORES", ENGINES)
        metafunc.parametrize("engine", engines, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """Which store the test opens."""
    return str(request.param)


@pytest.fixture
def open_store(engine: str, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """What opens a store by its folder; at the end of the test all of them are closed and removed."""
    servers = {"duckdb": [], "clickhouse": ["clickhouse"], "two servers": ["clickhouse", "second_clickhouse"]}
    if engine == "replicas":
        opener = OpenStore(*request.getfixturevalue("replica_servers"), url=replicas_url)
    else:
        opener = OpenStore(*(request.getfixturevalue(name) for name in servers[engine]))
    yield opener
    opener.close()
