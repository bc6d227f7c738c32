"""The memory behind a tensor: its storage, its version, the parts of a sparse or sharded one.

Cheap enough for the training thread; nothing here waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..guard import let_pass
from .torch_lookup import symbol


def available() -> dict[str, bool]:
    """Return which of the private symbols here this torch has."""
    return {
        "torch._C._nn.flatten_dense_tensors": _flatten is not None,
        "torch.Tensor.__dlpack_c_exchange_api__": exchange_api() is not None,
        "torch.Tensor._version": hasattr(Tensor, "_version"),
    }


version: Callable[[Tensor], int] = attrgetter("_version") if hasattr(Tensor, "_version") else lambda _: 0
"""In-place version counter; raises `RuntimeError` for an inference tensor, which has none."""


_flatten: Callable[[list[Tensor]], Tensor] | None = symbol("_nn", "flatten_dense_tensors")


def version_of(tensor: Tensor) -> int | None:
    """In-place version counter; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


def storage_reference(tensor: Tensor) -> object | None:
    """Return what equals that of every tensor in the same memory, even once that is freed; keeps none.

    None where it has none (empty, meta). A sparse tensor's is that of its values. Unlike an address it is
    never that of a later storage.
    """
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    try:
        storage = tensor.untyped_storage()
        return StorageWeakRef(storage) if storage.data_ptr() else None  # type: ignore[no-untyped-call]
    except (NotImplementedError, RuntimeError) as error:
        let_pass(error)
        return None


def storage_key(tensor: Tensor) -> int:
    """Address of the tensor's storage, shared by all its views; 0 where it has none (empty, meta).

    A sparse tensor's is that of its values.
    """
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    try:
        # Python's object of a storage stays as long as the storage does: 64 bytes of each parameter's.
        if type(tensor) in _PLAIN and tensor.layout is torch.strided and (address := tensor.data_ptr()):
            return address - int(tensor.storage_offset()) * tensor.element_size()
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError) as error:
        let_pass(error)
        return 0


def storage_bytes(tensor: Tensor) -> int:
    """Size of the tensor's storage, that of a sparse tensor's values; 0 where it has none."""
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError) as error:
        let_pass(error)
        return 0


def is_view(tensor: Tensor) -> bool:
    """Whether autograd tracks the tensor as a view of another."""
    return tensor._is_view()


def is_made_up_zero(tensor: Tensor) -> bool:
    """Whether a tensor is a ZeroTensor, which has a shape and no memory; they occur inside a backward."""
    return bool(tensor._is_zerotensor())


_has_cuda: Final = hasattr(torch._C, "_cuda_getDeviceCount")


def cuda_is_initialised() -> bool:
    """Whether this process uses CUDA; asking does not initialise it."""
    return _has_cuda and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def is_plain_strided(tensor: Tensor) -> bool:
    """Whether a tensor has all its elements in memory as they are: not sparse, meta, quantised or lazy."""
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
        return False
    return not (tensor.is_conj() or tensor.is_neg())


def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """Copy dense tensors into one new 1-D tensor; torch's own way halves the time of 2,000 small ones."""
    if _flatten is not None:
        flat = _flatten(list(tensors))
        # A single contiguous tensor may come back as a view of itself.
        return flat.clone() if len(tensors) == 1 else flat
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


_PLAIN: Final = frozenset({Tensor, nn.Parameter})


def local_shard(tensor: Tensor) -> Tensor:
    """Return the part of a DTensor that lies on this rank, of any other tensor itself.

    What is computed of a DTensor is a collective.
    """
    if type(tensor) in _PLAIN:
        return tensor
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, Tensor) else tensor


def coo_parts(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Indices and values of a tensor of layout `torch.sparse_coo`, coalesced or not."""
    return tensor._indices(), tensor._values()


def is_wrapper_class(kind: type) -> bool:
    """Whether tensors of a class consist of other tensors, and have no memory of their own (DTensor)."""
    return hasattr(kind, "__tensor_flatten__")


def exchange_api() -> Any | None:
    """The capsule with DLPack's functions by which C code finds a tensor's memory; None before torch 2.10."""
    return getattr(Tensor, "__dlpack_c_exchange_api__", None)
