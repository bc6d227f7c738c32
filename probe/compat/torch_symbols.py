"""C and C++ functions of torch that the kernels call by address: names, and where they are found.

The C ones are torch's own shims for compiled models (`torch/csrc/inductor/aoti_torch/c/shim.h`); each returns
0 where it succeeded, but for `at::sequence_number::peek`. Where one is missing the kernels read gradients
through Python.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

import torch

_FOLDER: Final = Path(torch.__file__).parent / "lib"
_SHIMS: Final = {
    "data_ptr": "aoti_torch_get_data_ptr",
    "numel": "aoti_torch_get_numel",
    "dtype": "aoti_torch_get_dtype",
    "device_type": "aoti_torch_get_device_type",
    "layout": "aoti_torch_get_layout",
    "is_contiguous": "aoti_torch_is_contiguous",
    "dim": "aoti_torch_get_dim",
    "sizes": "aoti_torch_get_sizes",
    "strides": "aoti_torch_get_strides",
    "storage_size": "aoti_torch_get_storage_size",
    "new_handle": "aoti_torch_new_tensor_handle",
    "delete_handle": "aoti_torch_delete_tensor_object",
    "next_sequence_number": "_ZN2at15sequence_number4peekEv",
}
_CORE: Final = {
    "grad": "_ZNK3c1010TensorImpl4gradEv",
    "grad_is_enabled": "_ZN3c108GradMode10is_enabledEv",
    "inference_is_enabled": "_ZN3c1013InferenceMode10is_enabledEv",
    "undefined": "_ZN3c1019UndefinedTensorImpl10_singletonE",
}
"""`c10::TensorImpl::grad`, `c10::GradMode::is_enabled`, `c10::InferenceMode::is_enabled`, and the object that
stands for no tensor."""

ATTRIBUTES: Final = (*("requires_grad", "grad_fn", "_backward_hooks", "_register_hook_dict", "_sequence_nr"),)
"""What the kernels read of tensors and nodes by name, in the order in which they know them; without one a
step goes the way of Python."""

MODULE_ATTRIBUTES: Final = ("_version", "_compiled_call_impl")
"""What they read of outputs and of modules."""


_DISPATCH_KEYS: Final = "_ZN3c104impl26raw_local_dispatch_key_setE"
"""`c10::impl::raw_local_dispatch_key_set`: the keys that this thread includes and excludes, a word each."""


def dispatch_keys_of_this_thread() -> int:
    """Return where the dispatch keys of the calling thread lie: two words, which say whether it has autocast
    for the CPU, `torch.jit.trace`, `torch.func` or inference mode on.

    Raises:
        ValueError: this torch does not export them.
    """
    keys = ctypes.c_uint64.in_dll(ctypes.CDLL(str(_FOLDER / "libc10.so")), _DISPATCH_KEYS)
    return ctypes.addressof(keys)


def find_symbols() -> dict[str, int] | str:
    """Return the addresses of all functions by short name, or which one this torch does not have."""
    found: dict[str, int] = {}
    for library, names in (("libtorch_cpu.so", _SHIMS), ("libc10.so", _CORE)):
        try:
            loaded = ctypes.CDLL(str(_FOLDER / library))
        except OSError as error:
            return f"{library} does not load: {error}"
        for short, name in names.items():
            try:
                found[short] = ctypes.addressof(ctypes.c_char.in_dll(loaded, name))
            except ValueError:
                return f"this torch does not export {name}"
    return found
