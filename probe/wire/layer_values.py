"""Parameter statistics to layer statistics, and calls of a module to one value: L2 norm, maximum or sum.

Pure functions of arrays, for who stores a batch and for who pools one before it is sent. A value that was not
measured takes no part; NaN and Inf of a parameter show in its layer, those of a call in its module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from .records import Layout

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.uint8]
MEASURED: Final = 1
SAW_NAN: Final = 2
SAW_INF: Final = 4

Reduction = Literal["norm", "max", "sum"]
REDUCTIONS: Final[dict[str, Reduction]] = {
    "grad_norm": "norm",
    "parameter_norm": "norm",
    "grad_max_abs": "max",
    "grad_nan_count": "sum",
    "grad_inf_count": "sum",
    "update_ratio": "max",
    "parameter_max_abs": "max",
    "first_moment_norm": "norm",
    "second_moment_norm": "norm",
    "effective_step": "max",
}
"""Statistics that have a value per layer; the others only have one per parameter."""

WITHOUT_GRADIENT: Final = frozenset({"parameter_norm"})
"""Statistics that exist for a parameter that has no gradient."""

_SUMMED: Final = frozenset(
    """calls activation_nan_count activation_inf_count activation_gradient_nan_count
    activation_gradient_inf_count forward_time_s forward_self_time_s backward_time_s backward_self_time_s
    output_bytes saved_bytes allocated_bytes""".split()
)
_NORMS: Final = frozenset({"activation_gradient_norm"})
"""Statistics of modules that add up over the calls of a step; of all others the largest stands."""

_LARGEST: Final = float(np.finfo(np.float32).max)
_SMALLEST: Final = float(np.finfo(np.float32).smallest_subnormal)


@dataclass(frozen=True, slots=True)
class Geometry:
    """A layout's names and how its parameters are grouped."""

    model: str
    parameters: tuple[str, ...]
    layers: tuple[str, ...]
    modules: tuple[str, ...]
    """In model order; empty until something of modules is measured."""
    parameters_of: tuple[tuple[int, ...], ...]
    """For each layer the indices of its parameters."""
    order: npt.NDArray[np.intp]
    """(parameters,) indices that make every layer's parameters contiguous."""
    starts: npt.NDArray[np.intp]
    """Where each non-empty layer begins in `order`."""
    filled: npt.NDArray[np.intp]
    """Indices of the layers that own a parameter."""


def geometry_of(layout: Layout) -> Geometry:
    """Prepare a layout.

    Raises:
        ValueError: a parameter names a layer that does not exist.
    """
    owner = np.array([parameter.layer for parameter in layout.parameters], dtype=np.int64)
    if len(owner) and owner.max() >= len(layout.layers):
        raise ValueError(f"a parameter belongs to layer {owner.max()} of {len(layout.layers)}")
    order = np.argsort(owner, kind="stable")
    filled, starts = np.unique(owner[order], return_index=True)
    members: list[list[int]] = [[] for _ in layout.layers]
    for index, parameter in enumerate(layout.parameters):
        members[parameter.layer].append(index)
    return Geometry(
        model=layout.model,
        parameters=tuple(parameter.name for parameter in layout.parameters),
        layers=tuple(layer.name for layer in layout.layers),
        modules=tuple(module.name for module in layout.modules),
        parameters_of=tuple(map(tuple, members)),
        order=order,
        starts=starts.astype(np.intp),
        filled=filled.astype(np.intp),
    )


def flags_of(values: npt.NDArray[np.floating]) -> Flags:
    """Return MEASURED plus SAW_NAN / SAW_INF per value."""
    flags: Flags = np.full(values.shape, MEASURED, np.uint8)
    flags[np.isnan(values)] |= SAW_NAN
    flags[np.isinf(values)] |= SAW_INF
    return flags


def narrow(values: npt.NDArray[np.float64]) -> Floats:
    """Return float32 in which finite stays finite and non-zero stays non-zero (at float32's own limits)."""
    with np.errstate(over="ignore", under="ignore"):
        result = values.astype(np.float32)
    overflow = np.isinf(result) & np.isfinite(values)
    result[overflow] = np.copysign(_LARGEST, values[overflow])
    underflow = (result == 0) & (values != 0)
    result[underflow] = np.copysign(_SMALLEST, values[underflow])
    return result


def reduce_layers(
    reduction: Reduction, values: npt.NDArray[np.floating], flags: Flags | None, geometry: Geometry
) -> tuple[Floats, Flags | None]:
    """Reduce (frames, parameters) to (frames, layers), in float64.

    Args:
        values: Any value where the parameter was not measured.
        flags: None when everything was measured and is finite.
    """
    frames, shape = len(values), (len(values), len(geometry.layers))
    whole = len(geometry.filled) == len(geometry.layers)
    grouped = values[:, geometry.order].astype(np.float64)
    group_flags = None if flags is None else flags[:, geometry.order]
    if group_flags is not None:
        grouped[group_flags == 0] = -np.inf if reduction == "max" else 0.0
    if not frames or not len(geometry.starts):
        return np.full(shape, np.nan, np.float32), np.zeros(shape, np.uint8)
    reduced = narrow(_REDUCERS[reduction](grouped, geometry.starts))
    if whole and group_flags is None:
        return reduced, None
    result, result_flags = np.full(shape, np.nan, np.float32), np.zeros(shape, np.uint8)
    result[:, geometry.filled] = reduced
    if group_flags is None:
        result_flags[:, geometry.filled] = MEASURED
    else:
        result_flags[:, geometry.filled] = np.bitwise_or.reduceat(group_flags, geometry.starts, axis=1)
    result[result_flags == 0] = np.nan
    return result, result_flags


def reduce_calls(
    name: str,
    values: npt.NDArray[np.float64],
    gaps: npt.NDArray[np.bool_],
    *,
    calls: npt.NDArray[np.intp],
    modules: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Reduce one value a call to (modules,) values and gaps: what adds up is added, of others the largest.

    Args:
        name: Decides how, see `probe.wire.module_frames.MODULE_COLUMNS`.
        values: (calls,); any value where there is none.
        gaps: (calls,) where there is none.
        calls: (calls,) the module of each.
        modules: How many there are.
    """
    reduction: Reduction = "sum" if name in _SUMMED else "norm" if name in _NORMS else "max"
    result, missing = np.zeros(modules), np.ones(modules, dtype=np.bool_)
    order = np.flatnonzero(~gaps)[np.argsort(calls[~gaps], kind="stable")]
    if len(order):
        found, starts = np.unique(calls[order], return_index=True)
        result[found] = _REDUCERS[reduction](values[order][None, :], starts.astype(np.intp))[0]
        missing[found] = False
    return result, missing


def _norm(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """L2 norm of each group of columns, scaled by each group's maximum so that squares cannot overflow."""
    if not len(values) or (np.abs(values).max() < 1e150 and _smallest_nonzero(values) > 1e-150):
        return np.asarray(np.sqrt(np.add.reduceat(values * values, starts, axis=1)))
    scale = np.maximum.reduceat(np.abs(values), starts, axis=1)
    usable = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    widths = np.diff(np.r_[starts, values.shape[1]])
    scaled = values / np.repeat(usable, widths, axis=1)
    with np.errstate(over="ignore"):  # what no float64 holds is Inf
        return np.asarray(usable * np.sqrt(np.add.reduceat(scaled * scaled, starts, axis=1)))


def _smallest_nonzero(values: npt.NDArray[np.float64]) -> float:
    return float(np.abs(values).min(where=values != 0, initial=np.inf))


def _max(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    return np.asarray(np.maximum.reduceat(values, starts, axis=1))


def _sum(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    return np.asarray(np.add.reduceat(values, starts, axis=1))


_REDUCERS: Final = {"norm": _norm, "max": _max, "sum": _sum}
