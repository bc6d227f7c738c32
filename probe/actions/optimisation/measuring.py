"""Times of steps in pairs, and the memory of one. On the thread that asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from ...compat.torch_profiler import peak_allocated
from ..profiling.recording import Recording

Run = Callable[[], object]


class PairedTimes(NamedTuple):
    """Seconds of steps that ran beside each other."""

    plain_s: list[float]
    own_s: list[float]


def timed(run: Run, device: torch.device) -> float:
    """Return the seconds of a call, with what it has left to do on the device."""
    _wait(device)
    began_ns = time.perf_counter_ns()
    run()
    _wait(device)
    return (time.perf_counter_ns() - began_ns) / 1e9


def pair_times(plain: Run, own: Run, device: torch.device, *, pairs: int, warm_up: int) -> PairedTimes:
    """Time two kinds of steps alternately: what the machine does besides meets both.

    Which one is first changes with every pair.
    """
    for _ in range(warm_up):
        plain()
        own()
    times = PairedTimes([], [])
    for at in range(pairs):
        for is_own in (False, True) if at % 2 == 0 else (True, False):
            (times.own_s if is_own else times.plain_s).append(timed(own if is_own else plain, device))
    return times


def peak_bytes(run: Run, device: torch.device) -> int | None:
    """Return what torch allocated on a device during a call at most, over what it had at its beginning.

    The allocators report each piece to the profiler, so no peak statistics of theirs are reset.

    Returns:
        None where another profiler runs in this process.
    """
    try:
        recording = Recording(memory=True, shapes=False, stacks=False)
    except ValueError:
        return None
    try:
        run()
        _wait(device)
    finally:
        recording.stop()
    return peak_allocated(recording.profiler, device.type)


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
