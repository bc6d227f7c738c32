"""The history of torch's CUDA allocator: each allocation with its stack. Private in torch, so it stands here.

`torch.cuda.memory._record_memory_history` costs about 2 us an allocation; on the thread that asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .torch_lookup import symbol
from .torch_memory import cuda_is_initialised

_record: Callable[..., None] | None = getattr(torch.cuda.memory, "_record_memory_history", None)
_snapshot: Callable[[], dict[str, Any]] | None = getattr(torch.cuda.memory, "_snapshot", None)
_is_enabled: Callable[[], bool] | None = symbol("_cuda_isHistoryEnabled")


def why_unavailable() -> str:
    """Return why no history can be had, in a sentence; "" where it can."""
    if not cuda_is_initialised():
        return "this process does not use CUDA (so far)"
    if _record is None or _snapshot is None:
        return f"torch {torch.__version__} keeps no history of its allocator"
    return ""


def begin_history(max_entries: int) -> bool:
    """Have allocations keep their Python stacks from now on; False where somebody has that done already.

    Args:
        max_entries: allocations and releases that are kept; the oldest go first.
    """
    assert _record is not None
    if _is_enabled is not None and _is_enabled():
        return False
    _record(enabled="all", context="alloc", stacks="python", max_entries=max_entries)
    return True


def end_history() -> None:
    """Keep no more of it."""
    assert _record is not None
    _record(enabled=None)


def read_history() -> dict[str, Any]:
    """Return `segments` (with their blocks) and `device_traces`; see `torch.cuda.memory._snapshot`."""
    assert _snapshot is not None
    return _snapshot()
