"""What torch.profiler does not say in public: whether one runs, who starts another, modules, calling lines.

Loaded when a profile is asked for. Without the event tree modules have the names that the trace gives them,
and a line is that of its function's beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd import profiler as autograd_profiler

from . import all_objects
from .profiler_starts import ProfilerStarts
from .torch_lookup import symbol

_enabled: Callable[[], bool] | None = symbol("_autograd", "_profiler_enabled")
_PYTHON = ("PyCall", "PyCCall")


def available() -> dict[str, bool]:
    """Return which of the private symbols here this torch has."""
    return {
        "torch._C._autograd._profiler_enabled": _enabled is not None,
        "torch.autograd.profiler._is_profiler_enabled": hasattr(autograd_profiler, "_is_profiler_enabled"),
        "torch.autograd.profiler.profile._prepare_trace": hasattr(
            autograd_profiler.profile, "_prepare_trace"
        ),
        "torch._C._autograd._ProfilerResult.experimental_event_tree": symbol(
            "_autograd", "_ProfilerResult", "experimental_event_tree"
        )
        is not None,
    }


def is_running() -> bool:
    """Whether a profiler of torch's is recording, on this thread or on another one."""
    is_on_any = getattr(autograd_profiler, "_is_profiler_enabled", False)
    return bool(is_on_any) or (_enabled is not None and bool(_enabled()))


def is_any_ready() -> bool:
    """Whether a profiler with a schedule is made ready, and has yet to begin; also if that is not known."""
    profilers = all_objects.faults.instances(torch.profiler.profile)
    return profilers is None or any(map(_is_ready, profilers))


def _is_ready(profiler: torch.profiler.profile) -> bool:
    """Whether it warms up; one that was stopped meanwhile has results, and the same action for ever."""
    is_warm = getattr(profiler, "current_action", None) == torch.profiler.ProfilerAction.WARMUP
    inner = getattr(profiler, "profiler", None)
    return is_warm and inner is not None and getattr(inner, "kineto_results", None) is None


class OtherProfilers:
    """Tells of the next profiler that begins in this process, before it does: torch would end ours silently.

    Args:
        tell: called once on the thread that begins it, which goes on when this returns; may not raise.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._starts = ProfilerStarts(self._tell_once)

    def watch(self) -> None:
        """From now on."""
        self._starts.watch()

    @contextmanager
    def _tell_once(self) -> Iterator[None]:
        self.stop()
        self._tell()
        yield

    def stop(self) -> None:
        """No more. Idempotent."""
        self._starts.stop()


class PythonCalls(NamedTuple):
    """What a trace does not say of the Python functions in it."""

    modules: Mapping[str, str]
    """By the name in the trace ("nn.Module: Linear_0"), the qualified name."""
    calling_lines: Mapping[int, int]
    """By the beginning of a call, in ns of the profiler's clock, the line from which it was called."""


def read_python_calls(profiler: torch.profiler.profile, names: Mapping[int, str]) -> PythonCalls:
    """Read the event tree of a profile that has ended, on any thread.

    Args:
        profiler: that has recorded stacks.
        names: qualified name by the `id` of each module.
    """
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    tree = getattr(results, "experimental_event_tree", None)
    modules: dict[str, str] = {}
    lines: dict[int, int] = {}
    waiting: list[Any] = [] if tree is None else list(tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag.name not in _PYTHON:
            continue
        call = event.extra_fields
        lines[event.start_time_ns] = call.caller.line_number
        module = getattr(call, "module", None)
        if module is not None and (name := names.get(module.self_ptr)) is not None:
            modules[event.name] = name
    return PythonCalls(modules, lines)


def peak_allocated(profiler: torch.profiler.profile, device_type: str) -> int | None:
    """Return the largest sum of the allocations that a profile has, in bytes; those before it count as 0.

    Args:
        profiler: that has recorded memory, and has ended.
        device_type: "cpu" or "cuda": whose memory.

    Returns:
        None where this torch does not give its events, or there is no allocation.
    """
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    events = getattr(results, "events", None)
    if events is None:
        return None
    found = sorted(
        (
            (event.start_ns(), event.nbytes())
            for event in events()
            if event.name() == "[memory]" and event.device_type().name.lower() == device_type
        ),
        key=lambda one: one[0],
    )
    if not found:
        return None
    held = peak = 0
    for _, count_bytes in found:
        held += count_bytes
        peak = max(peak, held)
    return peak
