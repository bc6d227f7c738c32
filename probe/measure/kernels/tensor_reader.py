"""How C code finds the memory of tensors: functions of Python, and torch's own interface for it (DLPack 1.3).

Called by `binding.py` once, when the kernel is loaded.
"""

from __future__ import annotations

import ctypes

from torch import Tensor, nn

from ...compat.torch_memory import exchange_api


class TensorReader(ctypes.Structure):
    """How C code reads a list of tensors: functions of Python and torch, by address; mirrored by gather.h."""

    _fields_ = [
        ("list_item", ctypes.c_void_p),
        ("type_of", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("clear_error", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("unlock", ctypes.c_void_p),
        ("lock", ctypes.c_void_p),
        ("none", ctypes.c_void_p),
        ("tensor_type", ctypes.c_void_p),
        ("parameter_type", ctypes.c_void_p),
    ]


class _ExchangeApi(ctypes.Structure):
    """`DLPackExchangeAPI` of DLPack 1.3 (torch 2.10 and later)."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
    ]


def find() -> TensorReader | None:
    """Return what C code needs to look up the memory of tensors; None where torch does not tell."""
    capsule = exchange_api()
    if capsule is None:
        return None
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    open_capsule = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))
    api = _ExchangeApi.from_address(open_capsule(capsule, b"dlpack_exchange_api"))
    if api.major != 1 or not api.describe:
        return None
    names = ("PyList_GetItem", "PyObject_Type", "Py_DecRef", "PyErr_Clear")
    threads = ("PyEval_SaveThread", "PyEval_RestoreThread")
    look, lock = (
        [ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p) for name in group] for group in (names, threads)
    )
    return TensorReader(*look, api.describe, *lock, id(None), id(Tensor), id(nn.Parameter))
