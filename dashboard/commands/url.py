"""`dashboard url`, and `dashboard open` without a folder: the way to the dashboard that runs. Light."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..errors import DashboardError
from ..serving import listening
from ..serving.running import find_server


def running_address(*, may_change: bool = True) -> str:
    """Return the address of the user's running dashboard, with its token.

    Args:
        may_change: whether who opens it may change things.

    Raises:
        DashboardError: none runs, or it does not answer; or it is of a version that has no such address.
    """
    running = find_server()
    if running is None:
        raise DashboardError("No dashboard of yours runs on this machine; start one with: dashboard serve")
    if not may_change and not running.view_address:
        raise DashboardError("The dashboard that runs is of an older version; stop it, and start it again.")
    return running.address if may_change else running.view_address


def open_running(*, open_browser: bool, announce: Callable[[str], None]) -> None:
    """Say where the running dashboard is, and show it on a local graphical session.

    Raises:
        DashboardError: none runs, or it does not answer.
    """
    address = running_address()
    announce(f"nanscope {address}")
    if open_browser and listening.has_graphical_session(os.environ):
        listening.open_browser(address, os.environ)
