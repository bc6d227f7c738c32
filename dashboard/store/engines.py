"""Which store a dashboard opens: a file in its data folder, or a ClickHouse database that several share."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Protocol

from ..errors import DashboardError
from .protocol import Looks, Store

COMMIT_SHARE: Final = 0.25
"""Of the time, for commits to ClickHouse: each makes parts that the server merges. But a helper's next
records wait for the commit of those before."""


class ServedStore(Store, Protocol):
    """A store, and what it tells those who serve it."""

    @property
    def notice(self) -> str | None:
        """What the user must be told about the data; None if nothing."""
        ...

    def limit_notices(self) -> list[str]:
        """What runs had too much of, for the page; empty while nothing was left out."""
        ...

    def share_looks(self, looks: Looks) -> None:
        """Have other processes that use this store know which ranks pages show here, and this one theirs."""
        ...

    def note_journals(self, runs: Collection[str]) -> None:
        """The journals of these runs have been read, or are shipped by helpers, and there are no others."""
        ...


def open_store(data: Path, url: str = "", *, environment: Mapping[str, str] = os.environ) -> ServedStore:
    """Open the store at an address, or without one the file in a folder.

    Args:
        data: Folder of the file.
        url: ``clickhouse://user@host:9000/database``; empty for the file.
        environment: Has the password of the database's user.

    Raises:
        DashboardError: it cannot be opened.
    """
    if not url:
        from .duck import DuckStore

        return DuckStore(data)
    try:
        from .clickhouse.connection import read_password
        from .clickhouse.store import ClickStore
    except ModuleNotFoundError as error:
        raise DashboardError(
            f"--store needs {error.name}, which is not installed: pip install 'nanscope[clickhouse]'"
        ) from error
    return ClickStore(url, password=read_password(environment), commit_share=COMMIT_SHARE)
