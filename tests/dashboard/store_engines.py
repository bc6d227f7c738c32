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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from clickhouse_server import ClickHouseServer, url_of

from dashboard.store.duck import DuckStore
from dashboard.store.protocol import Store

ENGINES = ("duckdb", "clickhouse")
TWO_SERVERS_TOO = (*ENGINES, "two servers")
"""What a file gives as its `STORES` in which ranks, events or people's words come together."""
DUCKDB_ONLY = pytest.mark.parametrize("engine", ["duckdb"], indirect=True)


class OpenStore:
    """Opens stores of one engine by folder; `open_store` is the fixture that gives it.

    Args:
        servers: Where stores have their databases; none for stores in DuckDB.
        url: Of a database on them.
    """

    def __init__(
        self,
        *servers: ClickHouseServer,
        url: Callable[[Sequence[ClickHouseServer], str], str] = url_of,
    ) -> None:
        self._servers, self._url = servers, url
        self._opened: list[Store] = []
        self._databases: set[str] = set()

    def __call__(self, folder: Path, **options: Any) -> Store:
        """Open the store of a folder with `clock` and `raw_steps`, if they are given."""
        if not self._servers:
            store: Store = DuckStore(folder, **options)
        else:
            from dashboard.store.clickhouse.store import ClickStore

            url = self._url(self._servers, self._database(folder))
            store = ClickStore(url, password=self._servers[0].password, **options)
        self._opened.append(store)
        return store

    def source(self, folder: Path) -> str:
        """A program's lines that open the store of a folder as `store`."""
        if not self._servers:
            line = f"store = DuckStore(Path({str(folder)!r}))"
            return f"from pathlib import Path\nfrom dashboard.store.duck import DuckStore\n{line}\n"
        url, password = self._url(self._servers, self._database(folder)), self._servers[0].password
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
        for server in self._servers:
            for name in sorted(self._databases):
                server.ask(f"DROP DATABASE IF EXISTS {name}")
