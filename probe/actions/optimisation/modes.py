"""The modes, what each is made of, and the precision of mixed precision. Pure but for what CUDA supports."""

from __future__ import annotations

import difflib
from typing import Final, Literal, get_args

import torch
from torch import nn

OptimizationMode = Literal["none", "amp", "compilation", "memory_efficient", "full"]
MODES: Final[tuple[OptimizationMode, ...]] = get_args(OptimizationMode)
WITH_AMP: Final = frozenset({"amp", "full"})
"""Forward and loss run under `torch.autocast`."""
WITH_COMPILATION: Final = frozenset({"compilation", "full"})
"""The model is called through `torch.compile`."""
WITH_CHECKPOINTS: Final = frozenset({"memory_efficient", "full"})
"""Blocks are computed again in the backward, and a training loop splits its batches."""
_HALF: Final = (torch.float16, torch.bfloat16)


def check_mode(mode: object) -> OptimizationMode:
    """Return a mode as it is spelled here.

    Raises:
        ValueError: there is no such mode.
    """
    if isinstance(mode, str) and mode in MODES:
        return mode
    near = difflib.get_close_matches(str(mode).lower(), MODES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"mode={mode!r} is none of {', '.join(map(repr, MODES))}{hint}")


def device_of(model: nn.Module) -> torch.device:
    """Device of the first parameter or buffer; the CPU of a model without any."""
    tensors = (*model.parameters(), *model.buffers())
    return tensors[0].device if tensors else torch.device("cpu")


def amp_dtype(device: torch.device, dtype: torch.dtype | None) -> torch.dtype:
    """Return what autocast computes in: bfloat16, and float16 on a GPU that has no bfloat16.

    Raises:
        ValueError: `dtype` is given, and is no half precision.
    """
    if dtype is not None:
        if dtype not in _HALF:
            raise ValueError(f"dtype={dtype} is not an autocast dtype: use float16 or bfloat16")
        return dtype
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16
