"""Makes Python functions of the kernel's callbacks for the calls of modules, and reads what they have noted.

Mirrors the structures of `calls.h` and `call_columns.h`. Called by the module observer, on the training
thread; nothing happens at import.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...compat import torch_engine, torch_modes, torch_symbols
from . import binding, tensor_reader

OPEN, DONE, FAILED = range(3)
WRAPS, IS_COMPILED = 1, 2
SECOND: Final = -1
BY_SHAPE: Final = -2
ALL_ACTIVE: Final = -1
NOT_KNOWN: Final = -2
COLUMNS: Final = 11
UNITS, DEAD_UNITS = 9, 10
_COLUMNS_HEAD: Final = struct.Struct("<3q")
_HEAD: Final = _COLUMNS_HEAD.size
_DOUBLE: Final = struct.Struct("<d")
_PACKED_HEAD: Final = 16
_WITH_GAPS: Final = 2
CALL: Final = np.dtype(
    [(name, np.int32) for name in ("row", "parent", "output", "state", "flags", "unit_rule")]
    + [("low", np.float64), ("high", np.float64)]
)
OUTPUT: Final = np.dtype(
    [("row", np.float64, 6), ("zeros", np.float64), ("saturated", np.float64)]
    + [(name, np.int64) for name in ("elements", "units", "activity")]
)
_FUNCTIONS: Final = (
    *("PyObject_Vectorcall", "PyObject_GetAttr", "PyWeakref_NewRef", "PyWeakref_GetObject"),
    *("PyLong_FromLongLong", "PyLong_AsLongLong", "Py_IncRef", "Py_DecRef"),
    *("PyThread_get_thread_ident", "PyByteArray_FromStringAndSize", "PyByteArray_AsString"),
)
_NO_TASK: Final = -1
_Pointer = ctypes.c_void_p
_Int = ctypes.c_int64


class _Api(ctypes.Structure):
    """Mirrors `CallApi`."""

    _fields_ = [("functions", _Pointer * len(_FUNCTIONS)), ("objects", _Pointer * 9), ("reader", _Pointer)]


class KnownModule(ctypes.Structure):
    """Mirrors `KnownModule`: one module that is to be followed."""

    _fields_ = [
        *[(name, _Pointer) for name in ("module", "reference")],
        *[(name, _Int) for name in ("row", "flags", "unit_rule")],
        *[(name, ctypes.c_double) for name in ("low", "high")],
    ]


class _State(ctypes.Structure):
    """Mirrors `CallState`."""

    _fields_ = [
        *[(name, _Int) for name in ("call_count", "output_count", "activity_bytes", "own_ns")],
        *[(name, _Int) for name in ("has_met_unknown", "generation")],
        *[(name, _Pointer) for name in ("calls", "outputs", "activity", "unusual")],
    ]


class Columns:
    """The columns of one step, made by the kernel, with a row for each module; arrays are made when wanted.

    Attributes:
        memory: all that the kernel has written.
        rows: number of modules.
    """

    __slots__ = ("_partly", "_whole", "memory", "rows")

    def __init__(self, memory: bytearray) -> None:
        self.memory = memory
        self.rows: int
        self.rows, self._whole, self._partly = _COLUMNS_HEAD.unpack_from(memory)

    @property
    def block(self) -> npt.NDArray[np.float64]:
        """(COLUMNS, rows); 0 where there is a gap, and nothing of dead units yet."""
        return np.frombuffer(self.memory, np.float64, COLUMNS * self.rows, _HEAD).reshape(COLUMNS, self.rows)

    @property
    def gaps(self) -> npt.NDArray[np.bool_]:
        """(COLUMNS, rows) where there is no value."""
        flags = np.frombuffer(self.memory, np.bool_, COLUMNS * self.rows, self._gaps_at)
        return flags.reshape(COLUMNS, self.rows)

    @property
    def states(self) -> npt.NDArray[np.uint8]:
        """(rows,) as `module_frames.MODULE_STATES` has them."""
        return np.frombuffer(self.memory, np.uint8, self.rows, self._gaps_at + COLUMNS * self.rows)

    @property
    def whole(self) -> tuple[bytes, bytes]:
        """Modules with units that were all active, and how many they have, as the bytes of two arrays."""
        at, taken = self._gaps_at - 32 * self.rows, 8 * self._whole
        units_at = at + 8 * self.rows
        return bytes(self.memory[at : at + taken]), bytes(self.memory[units_at : units_at + taken])

    def partly(self) -> dict[int, npt.NDArray[np.bool_]]:
        """Activity of the units of the other modules with units."""
        if not self._partly:
            return {}
        count, active_at = self._partly, self._gaps_at + (COLUMNS + 1) * self.rows
        rows_at = self._gaps_at - 16 * self.rows
        rows = struct.unpack_from(f"<{count}q", self.memory, rows_at)
        places = struct.unpack_from(f"<{count}q", self.memory, rows_at + 8 * self.rows)
        activity = {}
        for row, place in zip(rows, places, strict=True):
            (units,) = _DOUBLE.unpack_from(self.memory, _HEAD + 8 * (UNITS * self.rows + row))
            activity[row] = np.frombuffer(self.memory, np.bool_, int(units), active_at + place)
        return activity

    def put_dead_units(self, row: int, count: int | None) -> None:
        """Note how many units of a module are dead; None while that is not known."""
        at = DEAD_UNITS * self.rows + row
        _DOUBLE.pack_into(self.memory, _HEAD + 8 * at, count or 0)
        self.memory[self._gaps_at + at] = count is None

    def close_gaps_of_dead_units(self) -> None:
        """All modules with units have none that is dead; 0 is there already."""
        at, rows = self._gaps_at, self.rows
        units = self.memory[at + UNITS * rows : at + (UNITS + 1) * rows]
        self.memory[at + DEAD_UNITS * rows : at + (DEAD_UNITS + 1) * rows] = units

    @property
    def _gaps_at(self) -> int:
        return _HEAD + 8 * (COLUMNS + 4) * self.rows


def packed_columns(packed: bytearray, rows: int) -> list[tuple[int, bytes, bytes]]:
    """Take apart what `CallFunctions.pack` has made: number, floats and marks of each column that is kept."""
    wide, narrow, floats = 4 * rows, (rows + 7) // 8, _PACKED_HEAD
    marks = floats + COLUMNS * wide
    data = bytes(packed)
    return [
        (
            at,
            data[floats + at * wide : floats + (at + 1) * wide],
            data[marks + at * narrow : marks + (at + 1) * narrow] if kind == _WITH_GAPS else b"",
        )
        for at, kind in enumerate(data[:COLUMNS])
        if kind
    ]


class Noted(NamedTuple):
    """Copies of what was noted of one step."""

    calls: npt.NDArray[np.void]
    """(calls,) of dtype `CALL`, in the order in which they began."""
    outputs: npt.NDArray[np.void]
    """(outputs,) of dtype `OUTPUT`."""
    activity: npt.NDArray[np.bool_]
    """Of units, from the offsets that the outputs name."""


@dataclass(frozen=True, slots=True)
class CallFunctions:
    """The callbacks, as functions of Python, and what else the kernel does for them."""

    enter: Callable[[Any, Any, Any], object | None]
    leave: Callable[[Any, Any], None]
    measure: Callable[[Any, Any], bool]
    abandon: Callable[[Any], None]
    columns: Callable[[int], bytearray | None]
    """Given the number of modules: what was noted since the step began, see `Columns`; None where the kernel
    leaves that to Python."""
    pack: Callable[[bytearray], bytearray | None]
    """The same columns as a frame has them, see `packed_columns`; None where some value is no float32."""
    state: _State
    know: Callable[[int, Any], int]
    begin: Callable[[Any], None]
    end: Callable[[], None]
    settle: Callable[[], None]
    open: Callable[[Any, int], int]

    def token_of(self, number: int) -> int:
        """The token of a call that was opened by its number."""
        return int(self.state.generation) << 32 | number

    def number_of(self, token: int) -> int:
        """The number of the call that a token stands for."""
        return token & 0xFFFFFFFF

    def call(self, number: int) -> Any:
        """A copy of what was noted of one call, of dtype `CALL`."""
        return _copied(self.state.calls + number * CALL.itemsize, CALL, 1)[0]

    def noted(self) -> Noted:
        """Copy what was noted since the step began."""
        state = self.state
        return Noted(
            _copied(state.calls, CALL, state.call_count),
            _copied(state.outputs, OUTPUT, state.output_count),
            _copied(state.activity, np.dtype(np.bool_), state.activity_bytes),
        )


def _copied(address: int | None, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    if not address or not count:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype=dtype)


def functions() -> CallFunctions | None:
    """The functions; None where there is no kernel, or this Python or torch does not have what they need."""
    return None if binding.kernel() is None else _load()


@cache
def _load() -> CallFunctions | None:
    reader = tensor_reader.find()
    try:
        library = ctypes.PyDLL(str(binding.LIBRARY))
        size = _function(library, "nanscope_calls_sizes", _Int, ctypes.c_int)
        mine = [ctypes.sizeof(_Api), ctypes.sizeof(KnownModule), CALL.itemsize, OUTPUT.itemsize]
        if reader is None or [size(which) for which in range(5)] != [*mine, ctypes.sizeof(_State)]:
            return None
        api = _Api(reader=ctypes.addressof(reader))
        api.functions[:] = [ctypes.cast(ctypes.pythonapi[name], _Pointer).value for name in _FUNCTIONS]
    except (OSError, AttributeError):
        return None
    objects: list[object] = [None, True, False, *_names_alive, torch_engine.graph_task_id, _NO_TASK]
    objects += [torch_modes.is_jit_tracing, torch.Tensor.is_neg]
    api.objects[:] = list(map(id, objects))
    _bound.extend([api, reader, objects])
    _function(library, "nanscope_calls_use", None, _Pointer)(ctypes.addressof(api))
    return CallFunctions(
        **binding.methods_of(library, "nanscope_calls_methods"),
        state=_State.from_address(_function(library, "nanscope_calls_state", _Pointer)()),
        know=_function(library, "nanscope_calls_know", ctypes.c_int, _Int, _Pointer),
        open=_function(library, "nanscope_calls_open", _Int, _Pointer, _Int),
    )


_names_alive: Final = [str(name) for name in torch_symbols.MODULE_ATTRIBUTES]
_bound: list[object] = []
"""What the library refers to for as long as the process lives."""


def known_modules(modules: Sequence[tuple[Any, Any, int, int, int, float, float]]) -> Any:
    """Return the array of these: module, weak reference, row, flags, unit rule, low, high."""
    array = (KnownModule * len(modules))()
    for known, (module, reference, *rest) in zip(array, modules, strict=True):
        known.module, known.reference = id(module), id(reference)
        known.row, known.flags, known.unit_rule, known.low, known.high = rest
    return array


def _function(library: ctypes.PyDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function
