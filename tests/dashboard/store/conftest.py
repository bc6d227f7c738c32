"""Stores of every engine, for tests of what they have in common."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from store_engines import ENGINES, OpenStore


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Which store the test opens."""
    return str(request.param)


@pytest.fixture
def open_store(engine: str, request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """What opens a store by its folder; at the end of the test all of them are closed and removed."""
    if engine == "clickhouse" and importlib.util.find_spec("dashboard.store.clickhouse") is None:
        pytest.skip("there is no store in ClickHouse yet: dashboard.store.clickhouse is missing")
    opener = OpenStore(request.getfixturevalue("clickhouse") if engine == "clickhouse" else None)
    yield opener
    opener.close()
