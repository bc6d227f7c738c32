"""What of a policy a tensor breaks, and the tensor mended. Tensors in, findings and tensors out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ...compat import torch_memory, torch_modes
from ...measure.statistics.statistics import tensor_statistics
from ...settings.policies import OutputPolicy, Policy

_DEPTH: Final = 4
_MOST_ITEMS: Final = 64
_MOST_SAID: Final = 4
Visit = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Violation:
    """One condition that one tensor breaks."""

    condition: str
    """`finite`, `max_abs`, `range`, `ndim`, `shape`, `dtype` or `uniform`."""
    name: str
    """Of the tensor, as `forward` calls it."""
    text: str
    """What is wrong, as the rest of a sentence that begins with the name."""
    value: float | None = None
    threshold: float | None = None

    @property
    def is_mendable(self) -> bool:
        """Whether a tensor of other values can take its place."""
        return self.condition in ("finite", "max_abs", "range", "dtype")


def violations_of(policy: Policy, name: str, tensor: Tensor, *, is_first: bool) -> list[Violation]:
    """Return every condition that a tensor breaks.

    Args:
        policy: the conditions.
        name: of the tensor.
        tensor: whose values are read where it is floating-point and on the CPU, or where the policy waits.
        is_first: whether shape, type and deviation are asked of it.
    """
    found = _of_form(policy, name, tensor) if is_first else []
    if not tensor.is_floating_point() or not tensor.numel() or not torch_memory.is_plain_strided(tensor):
        return found
    if not (tensor.is_cpu or policy.wait_for_device):
        return found
    with torch_modes.own_operations():
        return found + _of_values(policy, name, tensor.detach(), is_first=is_first)


def _of_form(policy: Policy, name: str, tensor: Tensor) -> list[Violation]:
    found, shape = [], tuple(tensor.shape)
    if policy.ndim is not None and tensor.dim() != policy.ndim:
        text = f"has {tensor.dim()} dimensions, not {policy.ndim}"
        found.append(Violation("ndim", name, text, float(tensor.dim()), float(policy.ndim)))
    if policy.shape is not None and not _fits(shape, policy.shape):
        wanted = ", ".join("any" if size is None else str(size) for size in policy.shape)
        found.append(Violation("shape", name, f"has the shape {shape}, not ({wanted})"))
    if policy.dtype is not None and tensor.dtype != policy.dtype:
        found.append(Violation("dtype", name, f"has the type {tensor.dtype}, not {policy.dtype}"))
    return found


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(w is None or s == w for s, w in zip(shape, wanted, strict=True))


def _of_values(policy: Policy, name: str, tensor: Tensor, *, is_first: bool) -> list[Violation]:
    measured = tensor_statistics([tensor])
    nan, inf = int(measured.nan_count[0]), int(measured.inf_count[0])
    if nan or inf:
        # Nothing else can be said of it.
        text = f"holds {nan:,} NaN and {inf:,} Inf among {tensor.numel():,} values"
        return [Violation("finite", name, text, math.nan if nan else math.inf)] if policy.finite else []
    found, largest = [], float(measured.max_abs[0])
    if policy.max_abs is not None and largest > policy.max_abs:
        text = f"reaches an absolute value of {largest:.4g} (limit {policy.max_abs:g})"
        found.append(Violation("max_abs", name, text, largest, policy.max_abs))
    if policy.low is not None or policy.high is not None:
        low, high = (float(value) for value in torch.aminmax(tensor))
        if policy.low is not None and low < policy.low:
            text = f"goes down to {low:.4g} (lowest allowed {policy.low:g})"
            found.append(Violation("range", name, text, low, policy.low))
        if policy.high is not None and high > policy.high:
            text = f"goes up to {high:.4g} (highest allowed {policy.high:g})"
            found.append(Violation("range", name, text, high, policy.high))
    limit = policy.min_std if isinstance(policy, OutputPolicy) and is_first else None
    std = float(measured.std[0])
    if limit is not None and tensor.numel() > 1 and std < limit:
        text = f"is uniform: the standard deviation of its {tensor.numel():,} values is {std:.3g}"
        found.append(Violation("uniform", name, text, std, limit))
    return found


def mended(policy: Policy, tensor: Tensor, *, is_first: bool) -> Tensor:
    """Return a tensor whose values and type are as a policy wants them: 0 for NaN and Inf, then the limits.

    Gradients pass where a value is as it was. `is_first` says whether the type is asked of it.
    """
    if is_first and policy.dtype is not None and tensor.dtype != policy.dtype:
        tensor = tensor.to(policy.dtype)
    if not tensor.is_floating_point():
        return tensor
    if policy.finite:
        tensor = torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)
    lows = [limit for limit in (policy.low, _negative(policy.max_abs)) if limit is not None]
    highs = [limit for limit in (policy.high, policy.max_abs) if limit is not None]
    if lows or highs:
        tensor = tensor.clamp(min=max(lows) if lows else None, max=min(highs) if highs else None)
    return tensor


def _negative(limit: float | None) -> float | None:
    return None if limit is None else -limit


def apply_policy(policy: Policy, values: Sequence[tuple[str, Any]]) -> tuple[list[Any], list[Violation]]:
    """Check named values; returns them, mended where the policy says so, and all that they break."""
    found: list[Violation] = []
    recovers, names = policy.action == "recover", getattr(policy, "names", ())
    is_first = True

    def visit(name: str, tensor: Tensor) -> Tensor:
        nonlocal is_first
        first, is_first = is_first, False
        broken = violations_of(policy, name, tensor, is_first=first)
        found.extend(broken)
        if not recovers or not any(violation.is_mendable for violation in broken):
            return tensor
        with torch.autocast(tensor.device.type, enabled=False):
            return mended(policy, tensor, is_first=first)

    checked = [
        value if names and name not in names else map_tensors(value, name, visit) for name, value in values
    ]
    return checked, found


def lasting_violations(policy: Policy, found: Sequence[Violation]) -> list[Violation]:
    """Return those for which a policy raises: all, or what cannot be mended, or none."""
    if policy.action == "event":
        return []
    return [violation for violation in found if policy.action == "raise" or not violation.is_mendable]


def describe_violations(found: Sequence[Violation]) -> str:
    """Say what is wrong with the first few."""
    said = "; ".join(f"{violation.name} {violation.text}" for violation in found[:_MOST_SAID])
    more = f"; and {len(found) - _MOST_SAID} more" if len(found) > _MOST_SAID else ""
    return said + more


def map_tensors(
    value: Any, name: str, visit: Visit, depth: int = _DEPTH, most: int | None = _MOST_ITEMS
) -> Any:
    """Call `visit(name, tensor)` on the tensors in lists, tuples and mappings, and put its results there.

    Args:
        value: a tensor, or containers with tensors.
        name: of it.
        visit: returns the tensor, or what is to take its place.
        depth: containers within containers that are looked into.
        most: items of each that are looked at; None for all.

    Returns:
        The same object where no tensor was replaced, else a shallow copy.
    """
    if isinstance(value, Tensor):
        return visit(name, value)
    if not depth:
        return value
    if isinstance(value, Mapping):
        keys = list(value)[:most]
        items = {key: map_tensors(value[key], f"{name}[{key!r}]", visit, depth - 1, most) for key in keys}
        changed = {key: item for key, item in items.items() if item is not value[key]}
        return _with_items(value, changed) if changed else value
    if isinstance(value, list | tuple):
        return _map_sequence(value, name, visit, depth - 1, most)
    return value


def _map_sequence(
    value: list[Any] | tuple[Any, ...], name: str, visit: Visit, depth: int, most: int | None
) -> Any:
    head = value[:most]
    parts = [map_tensors(item, f"{name}[{index}]", visit, depth, most) for index, item in enumerate(head)]
    if all(part is item for part, item in zip(parts, head, strict=True)):
        return value
    parts += value[len(head) :]
    if hasattr(value, "_make"):
        return value._make(parts)
    return parts if isinstance(value, list) else tuple(parts)


def _with_items(value: Mapping[Any, Any], changed: dict[Any, Any]) -> Any:
    replaced: Any = copy.copy(value)
    for key, item in changed.items():
        replaced[key] = item
    return replaced
