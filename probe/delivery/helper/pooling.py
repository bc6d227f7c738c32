"""Pools the frames of one bucket of steps: of each layer and module the largest value. Pure arithmetic.

What a store pools of single steps is the same to the bit: layers are computed of their parameters at each
step first, and rounded.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from ...errors import WireError
from ...wire import Frame, Layout, ModuleColumn
from ...wire.columns import unpack_column, unpack_missing
from ...wire.layer_values import (
    MEASURED,
    REDUCTIONS,
    WITHOUT_GRADIENT,
    Floats,
    Geometry,
    geometry_of,
    narrow,
    reduce_calls,
    reduce_layers,
)
from ...wire.module_frames import pack_module_columns, unpack_module_column, unpack_module_rows
from .resolution import POOLED_STEPS

_Values = npt.NDArray[np.float64]
_Gaps = npt.NDArray[np.bool_]


class NotPooledError(ValueError):
    """What a bucket holds is to be sent step by step: a value that is not finite, or that fits no layout."""


class Pool:
    """The largest values so far of one layout's layers and modules.

    Args:
        layout: names the rows.

    Raises:
        NotPooledError: it contradicts itself.
    """

    def __init__(self, layout: Layout) -> None:
        try:
            self._geometry: Geometry = geometry_of(layout)
        except ValueError as error:
            raise NotPooledError(str(error)) from error
        self._layers: dict[str, Floats] = {}
        """Name -> (layers,), NaN where nothing was measured."""
        self._modules: dict[str, Floats] = {}
        self._states = b""

    def add(self, frame: Frame) -> None:
        """Take the statistics of one step.

        Raises:
            NotPooledError: they cannot be pooled; part of them may have been taken.
        """
        try:
            self._add_layers(frame)
            self._add_modules(frame)
        except WireError as error:
            raise NotPooledError(str(error)) from error
        self._states = frame.module_states or self._states

    def frame(self, first: Frame) -> Frame:
        """Return what was taken as one frame, and begin anew.

        Args:
            first: one of the frames; its step, time and stage stand for all of them.
        """
        pooled = msgspec.structs.replace(
            first,
            scalars={},
            columns=[],
            missing=b"",
            parameter_columns=[],
            histograms=[],
            module_rows=b"",
            module_states=self._states,
            layer_columns=_packed(self._layers),
            module_columns=_packed(self._modules),
            pooled=POOLED_STEPS,
        )
        self.clear()
        return pooled

    def clear(self) -> None:
        """Forget what was taken."""
        self._layers, self._modules, self._states = {}, {}, b""

    def _add_layers(self, frame: Frame) -> None:
        width = len(self._geometry.parameters)
        known = {column.name for column in frame.columns}
        missing = unpack_missing(frame, width)
        for column in frame.columns:
            values = unpack_column(column)
            if len(values) != width:
                raise NotPooledError(f"column {column.name!r} does not have {width} values")
            none = np.zeros(width, np.bool_)
            self._reduce(column.name, values, none if column.name in WITHOUT_GRADIENT else missing)
        for sampled in frame.parameter_columns:
            if sampled.name not in known:
                self._reduce(sampled.name, *unpack_module_column(sampled, width))

    def _reduce(self, name: str, values: _Values, gaps: _Gaps) -> None:
        """Take one statistic of all parameters; one that layers do not have is left out."""
        has_gaps = gaps.any()
        _require_finite(values[~gaps] if has_gaps else values)
        reduction = REDUCTIONS.get(name)
        if reduction is None:
            return
        flags = np.where(gaps, 0, MEASURED).astype(np.uint8)[None] if has_gaps else None
        reduced, measured = reduce_layers(reduction, values[None], flags, self._geometry)
        # A layer without any value is NaN.
        _require_finite(reduced if measured is None else reduced[measured > 0])
        _take(self._layers, name, reduced[0])

    def _add_modules(self, frame: Frame) -> None:
        modules = len(self._geometry.modules)
        if not frame.module_columns or not modules:
            return
        calls = unpack_module_rows(frame, modules) if frame.module_rows else None
        for column in frame.module_columns:
            values, gaps = unpack_module_column(column, modules if calls is None else len(calls))
            _require_finite(values[~gaps])
            if calls is not None:
                values, gaps = reduce_calls(column.name, values, gaps, calls=calls, modules=modules)
            _require_finite(values[~gaps])
            _take(self._modules, column.name, np.where(gaps, np.float32(np.nan), narrow(values)))


def _require_finite(values: npt.NDArray[np.floating]) -> None:
    if not np.isfinite(values).all():
        raise NotPooledError("NaN or Inf")


def _take(into: dict[str, Floats], name: str, row: Floats) -> None:
    known = into.get(name)
    into[name] = row if known is None else np.fmax(known, row)


def _packed(columns: dict[str, Floats]) -> list[ModuleColumn]:
    gaps = {name: np.isnan(values) for name, values in columns.items()}
    whole: Final = {name: values.astype(np.float64) for name, values in columns.items()}
    return pack_module_columns(whole, gaps)
