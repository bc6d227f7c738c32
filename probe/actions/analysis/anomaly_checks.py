"""`check_tensor_anomalies` and `check_gradient_anomalies`: a short mapping of what is not finite.

The reports of `analyze_tensor` and `check_gradients` say more; these are for a loop that only wants to know.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .gradient_checks import check_gradients
from .tensor import analyze_tensor


def check_tensor_anomalies(tensor: Tensor, name: str | None = None) -> dict[str, Any]:
    """Return whether a tensor holds NaN or Inf, and how many. Waits for its device; changes nothing.

    Args:
        tensor: of any kind that `analyze_tensor` takes.
        name: put into the result.

    Returns:
        `name`, `has_nan`, `has_inf`, `nan_count`, `inf_count`, `mean`, `std`, `min`, `max`, `norm`, `shape`,
        `dtype`, `device` and `ok`; a number is None where there is nothing to read.
    """
    report = analyze_tensor(tensor, name)
    numbers = ("has_nan", "has_inf", "nan_count", "inf_count", "mean", "std", "min", "max", "norm")
    form = ("name", "shape", "dtype", "device", "ok")
    return {field: getattr(report, field) for field in (*form, *numbers)}


def check_gradient_anomalies(model: nn.Module) -> dict[str, Any]:
    """Return how many parameters have gradients that are not finite, and which. Changes nothing.

    Args:
        model: whose trainable parameters are looked at; its device is waited for.

    Returns:
        `total_params`, `params_with_grad`, `params_without_grad`, `params_with_nan_grad`,
        `params_with_inf_grad` and `params_with_zero_grad` count parameters; `nan_params` and `inf_params`
        are lists of names; `total_norm` is the global L2 norm, None without gradients; `ok`.
    """
    report = check_gradients(model)
    nan = [one.name for one in report.parameters if one.nan_count]
    inf = [one.name for one in report.parameters if one.inf_count]
    return {
        "total_params": len(report.parameters),
        "params_with_grad": len(report.parameters) - len(report.missing),
        "params_without_grad": len(report.missing),
        "params_with_nan_grad": len(nan),
        "params_with_inf_grad": len(inf),
        "params_with_zero_grad": len(report.zero),
        "nan_params": nan,
        "inf_params": inf,
        "total_norm": report.total_norm,
        "ok": report.ok,
    }
