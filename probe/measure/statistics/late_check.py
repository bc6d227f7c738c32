"""Compares statistics that have arrived from a device with those that were waited for. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from .statistics import Floats, TensorStatistics, plan_measurement

_SAME: Final = 1e-3
"""Relative: one way adds up in float64, the other in float32."""


def difference(late: TensorStatistics, direct: TensorStatistics) -> str | None:
    """Say in what two measurements of the same tensors differ; None where they do not."""
    if not np.array_equal(late.missing, direct.missing):
        return "other tensors are missing"
    if late.is_finite is not direct.is_finite:
        return "one is finite, the other is not"
    if not late.is_finite:
        return None
    for name, one, other in (("norm", late.norm, direct.norm), ("max_abs", late.max_abs, direct.max_abs)):
        if not _is_same(one, other):
            at = int(np.argmax(np.abs(one - other)))
            return f"{name} {one[at]:.6g}, not {other[at]:.6g}"
    # Both are small beside the largest element where they cancel out.
    for name, one, other in (("mean", late.mean, direct.mean), ("std", late.std, direct.std)):
        if not np.all(np.abs(one - other) <= _SAME * direct.max_abs):
            return f"another {name}"
    return None


def _is_same(one: Floats, other: Floats) -> bool:
    return bool(np.allclose(one, other, rtol=_SAME, atol=0.0))


def try_device(device: torch.device) -> str | None:
    """Measure some tensors on a device both ways; say in what they differ, None where they do not."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(size, generator=generator).to(device) for size in (1, 300, 20_000)]
    plan = plan_measurement(tensors)
    late = plan.start(tensors)
    expected = plan.measure(tensors)
    for tensor in tensors:
        tensor.zero_()  # what was started is of before
    return difference(late.read(), expected)
