"""Runs an analysis call in a worker thread on behalf of a coroutine, under the caller's torch settings.

torch keeps grad mode, inference mode, autocast, the current CUDA device and stream per thread: they are
carried over. What the call reads may be changed by the event loop meanwhile: that is noticed and raised.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ...compat import torch_memory

P = ParamSpec("P")
R = TypeVar("R")

_AUTOCAST_DEVICES = ("cpu", "cuda")
_one_at_a_time = threading.Lock()
"""Held while a call runs the user's model: two of them at once would mix their random numbers and buffers."""


def awaitable_reading(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Make a call that only reads awaitable.

    The returned coroutine function raises ValueError when a tensor that it was given, or a parameter or
    gradient of a model that it was given, was changed while it was being read.
    """

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = _versions((*args, *kwargs.values()))
        settings = _Settings()
        result = await asyncio.to_thread(settings.run, functools.partial(function, *args, **kwargs))
        changed = _first_changed(before, _versions((*args, *kwargs.values())))
        if changed is not None:
            raise ValueError(
                f"{changed} was changed while {function.__name__} was reading it in its thread: await the "
                "call before optimizer.step(), zero_grad() or anything else that writes to it"
            )
        return result

    return call


def awaitable_running(function: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """Make a call that runs the user's model awaitable; such calls run one after the other.

    Until it returns, no other code may use the model or its optimizer, or draw from the default random
    generators. Cancelling the await does not stop the thread.
    """

    def exclusively(settings: _Settings, prepared: Callable[[], R]) -> R:
        with _one_at_a_time:
            return settings.run(prepared)

    @functools.wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        prepared = functools.partial(function, *args, **kwargs)
        return await asyncio.to_thread(exclusively, _Settings(), prepared)

    return call


class _Settings:
    """torch's per-thread settings of the thread that makes this object."""

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = [
            (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in _AUTOCAST_DEVICES
        ]
        self._autocast_cache = torch.is_autocast_cache_enabled()
        self._stream = torch.cuda.current_stream() if torch_memory.cuda_is_initialised() else None

    def run(self, function: Callable[[], R]) -> R:
        """Call `function` under these settings; to be used in another thread."""
        with self._applied():
            return function()

    @contextmanager
    def _applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._stream is not None:
                stack.enter_context(torch.cuda.stream(self._stream))
            if self._inference:
                stack.enter_context(torch.inference_mode())
            for device, enabled, dtype in self._autocast:
                if enabled:
                    autocast = torch.autocast(device, dtype=dtype, cache_enabled=self._autocast_cache)
                    stack.enter_context(autocast)
            stack.enter_context(torch.set_grad_enabled(self._grad))
            yield


@dataclass(frozen=True, slots=True)
class _Seen:
    """One tensor and its in-place version."""

    name: str
    tensor: Tensor | None
    version: int | None


def _versions(values: Sequence[Any]) -> list[_Seen]:
    seen: list[_Seen] = []
    for value in values:
        if isinstance(value, Tensor):
            seen.append(_Seen("the tensor", value, torch_memory.version_of(value)))
        elif isinstance(value, nn.Module):
            for name, parameter in value.named_parameters():
                gradient = parameter.grad
                seen.append(_Seen(f"parameter {name}", parameter, torch_memory.version_of(parameter)))
                version = None if gradient is None else torch_memory.version_of(gradient)
                seen.append(_Seen(f"the gradient of {name}", gradient, version))
    return seen


def _first_changed(before: list[_Seen], after: list[_Seen]) -> str | None:
    for old, new in zip(before, after, strict=False):
        if old.tensor is not new.tensor or old.version != new.version:
            return old.name
    return None if len(before) == len(after) else "the model"
