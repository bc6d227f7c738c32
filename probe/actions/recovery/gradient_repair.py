"""Changes gradients in place, as an action of a recovery: to zero, or what is not finite to a number."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...compat.torch_memory import coo_parts


def zero_gradients(parameters: Iterable[Tensor]) -> None:
    """Set every gradient that is there to zero."""
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()


def replace_nonfinite(parameters: Iterable[Tensor], replacement: float) -> None:
    """Put a number in the place of every NaN and Inf; of sparse gradients in their values."""
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                values = _values(parameter.grad.detach())
                torch.nan_to_num_(values, nan=replacement, posinf=replacement, neginf=replacement)


def _values(gradient: Tensor) -> Tensor:
    return coo_parts(gradient)[1] if gradient.layout is torch.sparse_coo else gradient
