"""Which of a model's buffers a bad forward has ruined: leaving its update out does not mend them."""

from __future__ import annotations

from typing import Final

from torch import nn

from ...compat import torch_memory

_MOST_NAMED: Final = 3


def describe_nan_buffers(model: nn.Module) -> str:
    """Name the buffers that hold NaN, as a sentence; "" where there are none. Waits for the device.

    Running statistics of normalisation, which a batch with NaN makes NaN for good. Inf is not looked for:
    masks hold it on purpose.
    """
    found = [
        name
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point() and torch_memory.is_plain_strided(buffer) and bool(buffer.isnan().any())
    ]
    if not found:
        return ""
    named = ", ".join(found[:_MOST_NAMED]) + (", ..." if len(found) > _MOST_NAMED else "")
    return f" This does not fix {len(found):,} buffers that hold NaN ({named}); a rollback restores buffers."
