"""Fixtures shared by the integration tests: a served page, a browser, and programs with the dashboard."""

from collections.abc import Iterator

import pytest
from forked_scripts import ForkedScripts
from page_fixtures import (
    browser,
    engine,
    own_run,
    page,
    playwright,
    profile,
    served,
    shared_page,
    shared_served,
    window,
)

__all__ = [
    "browser",
    "engine",
    "own_run",
    "page",
    "playwright",
    "profile",
    "served",
    "shared_page",
    "shared_served",
    "window",
]


@pytest.fixture(scope="session")
def forked_dashboard() -> Iterator[ForkedScripts]:
    """A process that has the dashboard, to fork servers and collectors from: two seconds of imports each."""
    with ForkedScripts(
        "dashboard.serving.server", "dashboard.ingest.spool", "probe.delivery.recorder.recorder"
    ) as scripts:
        yield scripts
