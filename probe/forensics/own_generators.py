"""Random generators that a script has made itself: a replay that draws from one leaves it as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


@contextmanager
def generators_preserved(values: Iterable[Any]) -> Iterator[None]:
    """Put the generators among some values back when the block ends."""
    restore = [put_back for value in values if (put_back := restoring(value)) is not None]
    try:
        yield
    finally:
        for put_back in restore:
            put_back()


def restoring(value: Any) -> Callable[[], Any] | None:
    """What puts a generator of torch, Python or NumPy back; None for anything else."""
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.random.RandomState):
        return partial(value.set_state, value.get_state())
    if isinstance(value, numpy.random.Generator):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    return None
