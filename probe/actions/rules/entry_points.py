"""Finds rules that installed packages bring along: entry points of the group `nanscope.rules`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
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
    points, problem = guard.attempt(_points_on, tuple(sys.path), entry_points)
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


@lru_cache(maxsize=1)
def _points_on(path: tuple[str, ...], find: Callable[..., EntryPoints]) -> tuple[EntryPoint, ...]:
    """Those of what is installed on `path`: to read that again takes 20 ms for each model of a series."""
    return tuple(find(group=GROUP))


def _add(point: EntryPoint, add: Callable[[Any, str], object]) -> None:
    add(point.load(), point.name)
