"""Makes Python functions of the kernel's callbacks for a healthy step; checks that they read torch right.

Mirrors the structures of `hot_state.h`. Called by the loop's fast path, on the training thread, when it arms
for the first time; nothing happens at import.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...compat import torch_ranks, torch_symbols
from . import binding
from .hot_checks import TENSOR_OFFSET, TYPE_OFFSET, find_problem

MAX_ARGUMENTS: Final = 16
MAX_OUTPUTS: Final = 8
MAX_MICRO_STEPS: Final = 32
MAX_GROUPS: Final = 32
MAX_SCALARS: Final = 8
MAX_AMBIENT: Final = 8
KEPT_STEPS: Final = 8
SITE_FRAMES: Final = 3
MARK_BYTES: Final = 448
IDLE, IN_FORWARD, AFTER_FORWARD, IN_BACKWARD, AFTER_BACKWARD, CLIPPED, IN_UPDATE = range(7)
"""Where the step under way stands: `HotState.state`."""
OWN_SCALARS: Final = (
    *("step_time_s", "probe_fraction", "grad_norm_clipped", "clip_fired"),
    *("data_wait_s", "forward_s", "backward_s", "optimizer_s"),
)
"""What a record says besides loss, norm and samples; learning rates follow."""
NEVER: Final = 2**62

_FUNCTIONS: Final = (
    *("PyTuple_GetItem", "PyTuple_Size", "PyList_GetItem", "PyList_Size", "PyDict_GetItem", "PyDict_Size"),
    *("PyDict_Next", "PyDict_Copy", "PyList_GetSlice", "PyList_SetItem", "PyTuple_New", "PyTuple_SetItem"),
    *("PyObject_Vectorcall", "PyDict_SetItem", "PyObject_GetAttr", "PyObject_SetAttr"),
    *("PyWeakref_NewRef", "PyLong_AsLongLong", "PyFloat_AsDouble", "Py_IncRef"),
    *("Py_DecRef", "PyLong_FromUnsignedLongLong"),
    *("PyThread_get_thread_ident", "PyEval_SaveThread"),
    *("PyEval_RestoreThread", "PyEval_GetFrame", "PyFrame_GetBack", "PyFrame_GetCode", "PyFrame_GetLasti"),
)
_NAMES: Final = (
    *torch_symbols.ATTRIBUTES,
    *("lr", "training", "param_groups", "params", torch_ranks.SYNCHRONISES),
)
_ATOMS: Final = (type(None), bool, int, float, str, bytes)
_TORCH: Final = (
    *("grad", "data_ptr", "numel", "dtype", "device_type", "layout", "is_contiguous", "dim", "sizes"),
    *("strides", "storage_size", "new_handle", "delete_handle", "grad_is_enabled", "inference_is_enabled"),
    *("next_sequence_number", "undefined"),
)
_Pointer = ctypes.c_void_p
_Int = ctypes.c_int64


class _Api(ctypes.Structure):
    """Mirrors `HotApi`: as many addresses as it has members, then two offsets."""

    _fields_ = [
        ("functions", _Pointer * len(_FUNCTIONS)),
        ("constants", _Pointer * 3),
        ("types", _Pointer * 5),
        ("atoms", _Pointer * len(_ATOMS)),
        ("names", _Pointer * len(_NAMES)),
        ("torch", _Pointer * len(_TORCH)),
        ("tensor_offset", _Int),
        ("type_offset", _Int),
    ]


class CallSite(ctypes.Structure):
    """Mirrors `CallSite`: code and instruction of the innermost frames outside of a wrapper."""

    _fields_ = [("code", _Pointer * SITE_FRAMES), ("instruction", _Int * SITE_FRAMES)]


class HotMicroStep(ctypes.Structure):
    """Mirrors `HotMicroStep`: what was learned of one forward and its backward."""

    _fields_ = [
        ("forward_site", CallSite),
        ("backward_site", CallSite),
        *[(name, _Pointer) for name in ("loss_node", "loss_core", "synchronises")],
        *[(name, _Int) for name in ("argument_count", "keyword_count", "tensor_count", "output_count")],
        *[(name, _Int) for name in ("looks_at_loss", "graph_kind", "line_kind")],
    ]


class HotLoop(ctypes.Structure):
    """Mirrors `HotLoop`: what was learned of a training loop."""

    _fields_ = [
        *[(name, _Pointer) for name in ("root", "optimizer", "scaler", "hook_table", "hook_key")],
        *[(name, _Pointer) for name in ("task", "random_state", "note_stack", "glance")],
        *[(name, _Pointer) for name in ("observe", "end_observation", "collect", "add_more", "on_news")],
        *[(name, _Pointer) for name in ("find_outputs", "look_at_loss", "scalars", "take_over", "replica")],
        *[(name, _Pointer) for name in ("measure", "finish")],
        ("receive", _Pointer * (MAX_MICRO_STEPS * MAX_OUTPUTS)),
        ("ambient", _Pointer * MAX_AMBIENT),
        ("ambient_argument", _Pointer * MAX_AMBIENT),
        ("ambient_value", _Pointer * MAX_AMBIENT),
        ("groups", _Pointer * MAX_GROUPS),
        ("group_sizes", _Int * MAX_GROUPS),
        *[(name, _Pointer) for name in ("parameters", "frozen")],
        ("dispatch_keys", _Pointer),
        *[(name, _Int) for name in ("ambient_count", "told_by_keys")],
        *[(name, _Int) for name in ("group_count", "rate_count", "scalar_count")],
        *[(name, _Int) for name in ("parameter_count", "frozen_count")],
        *[(name, _Int) for name in ("micro_steps", "clips", "has_no_update", "is_distributed")],
        ("reads_losses", _Int),
        *[(name, _Int) for name in ("bad_loss", "bad_gradients", "bad_parameters")],
        *[(name, _Int) for name in ("input_limit_bytes", "output_limit_bytes")],
        ("micro", HotMicroStep * MAX_MICRO_STEPS),
        ("thread", ctypes.c_ulong),
        ("ring", _Pointer),
        *[(name, _Int) for name in ("template_id", "norms_every", "ratios_every", "observed_every")],
        ("glanced_elements", _Int),
        *[(name, _Pointer) for name in ("copies", "copy_bytes", "marked", "marked_data")],
        ("marked_bytes", _Int),
        *[(name, _Pointer) for name in ("phases", "waits")],
    ]


class KeptInputs(ctypes.Structure):
    """Mirrors `KeptInputs`: what one forward was called with."""

    _fields_ = [
        *[(name, _Pointer) for name in ("args", "kwargs", "random")],
        ("step", _Int),
        ("versions", _Int * MAX_ARGUMENTS),
    ]


class HotOutput(ctypes.Structure):
    """Mirrors `HotOutput`: one tensor that a forward returned."""

    _fields_ = [
        *[(name, _Pointer) for name in ("held", "number", "gradient", "life")],
        *[(name, _Int) for name in ("version", "is_weak", "is_droppable")],
    ]


class HotCall(ctypes.Structure):
    """Mirrors `HotCall`: one forward of the step under way, and its backward."""

    _fields_ = [
        ("inputs", _Pointer),
        *[(name, _Pointer) for name in ("boundary", "loss", "unscaled", "noted", "task")],
        *[(name, _Int) for name in ("samples", "elements", "bytes", "output_count")],
        *[(name, ctypes.c_double) for name in ("value", "raw", "divisor", "share")],
        ("outputs", HotOutput * MAX_OUTPUTS),
    ]


class HotState(ctypes.Structure):
    """Mirrors `HotState`: where the step under way stands, and what has been counted."""

    _fields_ = [
        *[(name, _Int) for name in ("armed", "state", "step", "slow_at", "attention", "news", "micro_step")],
        *[(name, _Int) for name in ("beats", "steps", "own_ns", "last_end_ns", "step_own_ns")],
        *[(name, _Int) for name in ("refused", "refused_at")],
        *[(name, _Int) for name in ("input_bytes", "free_since_ns", "before_backward_ns", "frozen_at")],
        *[(name, _Int) for name in ("samples", "news_at_ns", "has_logged")],
        *[(name, ctypes.c_double) for name in ("total_norm", "before_clip", "after_clip", "accumulation")],
        *[(name, _Pointer) for name in ("unscaled", "scaled", "sink", "bell")],
        *[(name, _Int) for name in ("is_marked", "mark_version")],
        ("mark", ctypes.c_uint8 * MARK_BYTES),
    ]


@dataclass(frozen=True, slots=True)
class HotCalls:
    """The callbacks, as functions of Python, and the memory that they share with it."""

    begin_forward: Callable[..., bool | None]
    end_forward: Callable[[Any], bool]
    receive: Callable[[int], Callable[[Tensor], None]]
    """The hook of an output, by its number: `MAX_OUTPUTS` for each micro-step."""
    after_scale: Callable[[Any, Any], bool]
    after_scaler_step: Callable[[Any, Any], bool]
    begin_backward: Callable[..., bool | None]
    end_backward: Callable[[], bool]
    before_clip: Callable[[], bool | None]
    before_clearing: Callable[[Any], bool]
    before_step: Callable[..., bool | None]
    after_step: Callable[[Any], bool | None]
    count_step: Callable[..., bool | None]
    pass_step: Callable[[Any], bool]
    state: HotState
    open_calls: ctypes.Array[HotCall]
    """Of the step under way."""
    kept: ctypes.Array[KeptInputs]
    measured: Callable[[int, int], tuple[NDArray[np.float64], NDArray[np.bool_]]]
    """Given rows and n: copies of what C has measured last of n gradients, and which of them are missing."""
    follow: Callable[[HotLoop], bool]
    forget: Callable[[], None]


@dataclass(frozen=True, slots=True)
class HotStatus:
    """Whether healthy steps can be followed in C, and why not."""

    calls: HotCalls | None
    reason: str


@cache
def status() -> HotStatus:
    """Find, bind and check everything once; never raises."""
    kernel = binding.kernel()
    if kernel is None:
        return HotStatus(None, binding.status().reason)
    symbols = torch_symbols.find_symbols()
    if isinstance(symbols, str):
        return HotStatus(None, symbols)
    try:
        library = ctypes.PyDLL(str(binding.LIBRARY))
        api = _build_api(symbols)
        problem = _mirrors(library) or find_problem(symbols)
        if problem is not None:
            return HotStatus(None, problem)
        return HotStatus(_bind(library, api), "healthy steps are followed in C")
    except (OSError, AttributeError, ValueError, RuntimeError) as error:
        return HotStatus(None, f"healthy steps cannot be followed in C: {error}")


def address_of(thing: object) -> int:
    """The address of a Python object, for C code; whoever passes it keeps the object alive."""
    return id(thing)


_names_alive: Final = [str(name) for name in _NAMES]


def _build_api(symbols: dict[str, int]) -> _Api:
    api = _Api()
    api.functions[:] = [ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value for name in _FUNCTIONS]
    api.constants[:] = [id(None), id(True), id(False)]
    api.types[:] = [id(Tensor), id(float), id(tuple), id(list), id(dict)]
    api.atoms[:] = [id(kind) for kind in _ATOMS]
    api.names[:] = [id(name) for name in _names_alive]
    api.torch[:] = [symbols[name] for name in _TORCH]
    api.tensor_offset, api.type_offset = TENSOR_OFFSET, TYPE_OFFSET
    return api


def _mirrors(library: ctypes.PyDLL) -> str | None:
    size = _function(library, "nanscope_hot_sizes", ctypes.c_int64, ctypes.c_int)
    mine = [ctypes.sizeof(kind) for kind in (_Api, HotLoop, HotState, KeptInputs, HotCall)]
    return None if [size(which) for which in range(5)] == mine else "the kernel is of another version"


_bound: list[object] = []
"""What the library refers to for as long as the process lives."""


def _bind(library: ctypes.PyDLL, api: _Api) -> HotCalls:
    _bound.append(api)
    _function(library, "nanscope_hot_use", None, _Pointer)(ctypes.addressof(api))
    functions = binding.methods_of(library, "nanscope_hot_methods", numbered="receive")
    state = HotState.from_address(_function(library, "nanscope_hot_state", _Pointer)())
    kept_type, calls_type = KeptInputs * (KEPT_STEPS * MAX_MICRO_STEPS), HotCall * MAX_MICRO_STEPS
    follow = _function(library, "nanscope_hot_follow", ctypes.c_int, _Pointer)
    state.total_norm = math.nan
    return HotCalls(
        **functions,
        state=state,
        open_calls=calls_type.from_address(_function(library, "nanscope_hot_calls", _Pointer)()),
        kept=kept_type.from_address(_function(library, "nanscope_hot_kept", _Pointer)()),
        measured=_reader_of_measured(library),
        follow=lambda loop: bool(follow(ctypes.addressof(loop))),
        forget=_function(library, "nanscope_hot_forget", None),
    )


def _reader_of_measured(
    library: ctypes.PyDLL,
) -> Callable[[int, int], tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    block_at = _function(library, "nanscope_hot_block", _Pointer)
    kinds_at = _function(library, "nanscope_hot_kinds", _Pointer)

    def read(rows: int, count: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        block = np.ctypeslib.as_array((ctypes.c_double * (rows * count)).from_address(block_at()))
        kinds = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(kinds_at()))
        return block.reshape(rows, count).copy(), kinds == binding.MISSING

    return read


def object_at(address: int | None) -> Any:
    """The Python object that C code holds at an address; None where there is none."""
    return None if not address else ctypes.cast(address, ctypes.py_object).value


def _function(library: ctypes.PyDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function
