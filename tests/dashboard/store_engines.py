"""The stores that the contract of `dashboard.store.protocol.Store` is tested with, and how a test opens one.

    def test_what_a_store_does(open_store: OpenStore, tmp_path: Path) -> None:
        store = open_store(tmp_path)  # closed at the end of the test
        ...
        store.close()
        again = open_store(tmp_path)  # the same folder: the same data

Such a test has nothing but methods of `Store`, and runs once with each engine. `DUCKDB_ONLY` marks one that
looks behind them, in a file of contract tests.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from clickhouse_server import ClickHouseServer

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import Store

ENGINES = ("duckdb", "clickhouse")
DUCKDB_ONLY = pytest.mark.parametrize("engine", ["duckdb"], indirect=True)


class OpenStore:
    """Opens stores of one engine by folder; `open_store` is the fixture that gives it.

    Args:
        server: Where stores have their databases; None for stores in DuckDB.
    """

    def __init__(self, server: ClickHouseServer | None = None) -> None:
        self._server = server
        self._opened: list[Store] = []
        self._databases: set[str] = set()

    def __call__(self, folder: Path, **options: Any) -> Store:
        """Open the store of a folder with `clock` and `raw_steps`, if they are given."""
        if self._server is None:
            store: Store = DuckStore(folder, **options)
        else:
            from dashboard.store.clickhouse.store import ClickStore

            url = self._server.url(self._database(folder))
            store = ClickStore(url, password=self._server.password, **options)
        self._opened.append(store)
        return store

    def source(self, folder: Path) -> str:
        """A program's lines that open the store of a folder as `store`."""
        if self._server is None:
            line = f"store = DuckStore(Path({str(folder)!r}))"
            return f"from pathlib import Path\nfrom dashboard.store.duck import DuckStore\n{line}\n"
        url, password = self._server.url(self._database(folder)), self._server.password
        line = f"store = ClickStore({url!r}, password={password!r})"
        return f"from dashboard.store.clickhouse.store import ClickStore\n{line}\n"

    def _database(self, folder: Path) -> str:
        name = "test_" + hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
        self._databases.add(name)
        return name

    def close(self) -> None:
        """Close what was opened and remove what is not in a folder of the test's."""
        for store in reversed(self._opened):
            store.close()
        for name in sorted(self._databases):
            assert self._server is not None
            self._server.ask(f"DROP DATABASE IF EXISTS {name}")
