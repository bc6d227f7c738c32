"""`@debug_operation`: each call of a function is a region, see `regions.py`. Any thread, and coroutines."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from .regions import debug_context

F = TypeVar("F", bound=Callable[..., Any])


def debug_operation(
    name: str | Callable[..., Any] | None = None,
    *,
    anomaly: bool = False,
    slow_above_s: float | None = None,
    logger: logging.Logger | None = None,
    enabled: bool | None = None,
    region: Callable[..., debug_context] = debug_context,
) -> Any:
    """Decorate a function so that each call is a region (see `debug_context`): `@debug_operation("step")`.

    The function keeps its name, signature and result; a coroutine function stays one. Also without
    parentheses: `@debug_operation`.

    Args:
        name: of the region; the function's qualified name by default.
        anomaly: autograd's anomaly mode inside, see `anomaly_detection`.
        slow_above_s: average seconds of a call above which it is slow, see `debug_context`.
        logger: gets that warning, and the exceptions that leave the function.
        enabled: False leaves the calls alone; None asks, at each call, as the region does.
        region: makes the region; a session's own records it with the run.

    Raises:
        ValueError: what is decorated is no function or coroutine function.
    """
    if callable(name):
        return debug_operation(None, enabled=enabled, region=region)(name)

    def decorate(function: F) -> F:
        is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if not callable(function) or is_generator:
            raise ValueError(
                f"debug_operation takes a function or a coroutine function, got {function!r}: wrap the loop "
                "over a generator in debug_context instead"
            )
        label = name or getattr(function, "__qualname__", type(function).__name__)
        measured = region(label, anomaly=anomaly, slow_above_s=slow_above_s, logger=logger, enabled=enabled)
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with measured:
                    return await function(*args, **kwargs)
        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with measured:
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[no-any-return]

    return decorate
