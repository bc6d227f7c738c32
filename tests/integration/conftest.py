"""Fixtures shared by the integration tests: a served page, a browser, and a process to fork scripts from."""

from collections.abc import Iterator

import pytest
from forked_scripts import ForkedScripts
from page_fixtures import browser, page, playwright, profile, served, window

__all__ = ["browser", "page", "playwright", "profile", "served", "window"]


@pytest.fixture(scope="session")
def forked() -> Iterator[ForkedScripts]:
    """One for all the files of a worker."""
    with ForkedScripts("probe.session") as scripts:
        yield scripts
