"""Checks that torch and Python lay things out as the callbacks for a healthy step read them.

Called once, when the callbacks are bound; a single difference has all steps go the slow way.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch
from torch import Tensor, nn

from ...compat import torch_engine, torch_symbols

TENSOR_OFFSET: Final = 16
TYPE_OFFSET: Final = 8
"""Of `THPVariable.cdata` and `PyObject.ob_type` in CPython without debugging; checked before use."""
_VERSION_COUNTER, _VERSION = 40, 16
"""Of `TensorImpl::version_counter_` and of the number in what it points to; checked before use."""

_Pointer = ctypes.c_void_p


def find_problem(symbols: dict[str, int]) -> str | None:
    """Return what is not as it is read; None where all is.

    Args:
        symbols: addresses of torch's functions, see `torch_symbols.find_symbols`.
    """
    # The script may stand anywhere: in inference mode, say, or with another default device.
    with torch.inference_mode(mode=False), torch.enable_grad(), torch.device("cpu"):
        return _check_layout() or _check_reading(symbols) or _check_state(symbols)


def _check_layout() -> str | None:
    """Whether a type stands where it is looked for, in objects of several kinds."""
    things: list[object] = [torch.zeros(1), nn.Parameter(torch.zeros(1)), (), [], 1.0]
    for thing in things:
        if _Pointer.from_address(id(thing) + TYPE_OFFSET).value != id(type(thing)):
            return "this Python lays its objects out differently"
    return None


def _check_reading(symbols: dict[str, int]) -> str | None:
    """Compare what torch's functions say of some tensors with what Python says."""
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    plain = [torch.arange(6, dtype=dtype) for dtype in dtypes]
    tensors = [
        *plain,
        plain[0][2:],
        torch.zeros(2, 3).t(),
        torch.zeros(1, 2, 2, 2).to(memory_format=torch.channels_last),
    ]
    if not all(_reads_right(symbols, tensor) for tensor in tensors):
        return "torch's C functions do not read its tensors as expected"
    grad = ctypes.CFUNCTYPE(_Pointer, _Pointer)(symbols["grad"])
    for gradient in (None, torch.ones(3)):
        parameter = nn.Parameter(torch.zeros(3))
        parameter.grad = gradient
        impl = _Pointer.from_address(id(parameter) + TENSOR_OFFSET).value
        found = _Pointer.from_address(grad(impl) or 0).value
        expected = (
            symbols["undefined"]
            if gradient is None
            else _Pointer.from_address(id(parameter.grad) + TENSOR_OFFSET).value
        )
        if found != expected:
            return "torch's C++ function for gradients does not give a parameter's gradient"
    return None


def _check_state(symbols: dict[str, int]) -> str | None:
    """Compare what is read of torch's state, by address or offset, with what Python says."""
    written = torch.zeros(2)
    written.add_(1).mul_(2)
    with torch.inference_mode():
        uncounted = torch.zeros(1)
    for tensor, version in ((torch.zeros(1), 0), (written, 2), (written[1:], 2), (uncounted, None)):
        impl = _Pointer.from_address(id(tensor) + TENSOR_OFFSET).value or 0
        counter = _Pointer.from_address(impl + _VERSION_COUNTER).value
        if (counter and ctypes.c_uint32.from_address(counter + _VERSION).value) != version:
            return "this torch lays out the versions of tensors differently"
    ask = ctypes.CFUNCTYPE(ctypes.c_uint64)(symbols["next_sequence_number"])
    before = torch_engine.next_sequence_number()
    _ = torch.ones(1, requires_grad=True) * 1
    if before is None or ask() != torch_engine.next_sequence_number() or ask() != before + 1:
        return "torch's C++ function for sequence numbers does not say what Python says"
    return None if _keys_tell_states() else "torch's dispatch keys do not tell what they are read for"


def _keys_tell_states() -> bool:
    """Whether the dispatch keys of this thread are others under autocast and in `torch.func`."""
    keys = (ctypes.c_uint64 * 2).from_address(torch_symbols.dispatch_keys_of_this_thread())
    plain = keys[:]
    with torch.autocast("cpu", enabled=not torch.is_autocast_enabled("cpu")):
        told = [keys[:] != plain]

    def look(value: Tensor) -> Tensor:
        told.append(keys[:] != plain)
        return value

    torch.func.vmap(look)(torch.ones(1))
    return all(told) and keys[:] == plain


def _reads_right(symbols: dict[str, int], tensor: Tensor) -> bool:
    handle = id(tensor) + TENSOR_OFFSET
    numbers = {torch.float32: 6, torch.float64: 7, torch.float16: 5, torch.bfloat16: 15}
    expected: dict[str, tuple[Any, int]] = {
        "data_ptr": (ctypes.c_uint64, tensor.data_ptr()),
        "numel": (ctypes.c_int64, tensor.numel()),
        "dtype": (ctypes.c_int32, numbers[tensor.dtype]),
        "device_type": (ctypes.c_int32, 0),
        "layout": (ctypes.c_int32, 0),
        "is_contiguous": (ctypes.c_uint8, int(tensor.is_contiguous())),
        "dim": (ctypes.c_int64, tensor.dim()),
        "storage_size": (ctypes.c_int64, tensor.untyped_storage().nbytes()),
    }
    for name, (kind, value) in expected.items():
        result = kind()
        ask = ctypes.CFUNCTYPE(ctypes.c_int32, _Pointer, _Pointer)(symbols[name])
        if ask(handle, ctypes.addressof(result)) or result.value != value:
            return False
    return _listed(symbols["sizes"], tensor) == list(tensor.shape) and _listed(
        symbols["strides"], tensor
    ) == list(tensor.stride())


def _listed(function: int, tensor: Tensor) -> list[int]:
    found = ctypes.POINTER(ctypes.c_int64)()
    ask = ctypes.CFUNCTYPE(ctypes.c_int32, _Pointer, _Pointer)(function)
    ask(id(tensor) + TENSOR_OFFSET, ctypes.addressof(found))
    return found[: tensor.dim()]
