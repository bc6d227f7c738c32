"""Lets go of what a failed attempt still holds: frames of its exception, garbage, cached device memory."""

from __future__ import annotations

import gc
import traceback

import torch

from ...compat import torch_memory


def release_after(error: BaseException) -> None:
    """Drop the local variables of the frames that an exception holds, and give cached memory back.

    The exception can still be raised; its stack then shows no values any more.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        traceback.clear_frames(one.__traceback__)
    gc.collect()
    if torch_memory.cuda_is_initialised():
        torch.cuda.empty_cache()
