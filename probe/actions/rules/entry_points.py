"""Finds rules that installed packages bring along: entry points of the group `nanscope.rules`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from ...guard import Guard

GROUP: Final = "nanscope.rules"
_logger = logging.getLogger(__name__)


def add_installed_rules(add: Callable[[Any, str], object], guard: Guard) -> None:
    """Give every installed rule to `add`; one that does not load is told to Python logging, and left out.

    Args:
        add: takes a function and its name.
        guard: calls what the packages bring.
    """
    points, problem = guard.attempt(entry_points, group=GROUP)
    if problem is not None:
        _logger.warning("nanscope: rules of installed packages are not used: %s", problem)
    for point in points or ():
        _, error = guard.attempt(_add, point, add)
        if error is not None:
            _logger.warning(
                "nanscope: the rule %s (%s) is not used: %s: %s",
                point.name,
                point.value,
                type(error).__name__,
                error,
            )


def _add(point: EntryPoint, add: Callable[[Any, str], object]) -> None:
    add(point.load(), point.name)
