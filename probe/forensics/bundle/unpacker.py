"""Gives the tensors of a bundle back. Nothing in it is trusted: sizes, types and places are checked first.

What is read lands in memory of our own that begins where it began in the run, for some kernels choose their
instructions by the address.
"""

from __future__ import annotations

import math
import stat
import zlib
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...errors import BundleError
from .packer import MOST_SPREAD
from .schema import ALIGNMENT, Blob, Contents, SparseTensor, StridedTensor, extent, without_repeats

_CHUNK_BYTES: Final = 1 << 20


class TensorReader:
    """The tensors of one bundle; each is made once, so that what was the same stays the same.

    Attributes:
        replaced_devices: devices that this machine lacks; the CPU stands in for them.
    """

    def __init__(self, path: Path, contents: Contents) -> None:
        """Open `tensors.safetensors`.

        Raises:
            BundleError: the file is not what the bundle says it is.
        """
        self.replaced_devices: set[str] = set()
        self._records, self._blobs = contents.tensors, contents.blobs
        self._stretches: dict[tuple[str, torch.device], Tensor] = {}
        self._tensors: dict[int, Tensor] = {}
        _check_file(path, size=contents.tensors_bytes, crc32=contents.tensors_crc32)
        try:
            file: Any = safe_open(str(path), framework="pt")
            names = set(file.keys())
        except (SafetensorError, OSError) as error:
            raise BundleError(f"{path} cannot be read: {error}") from error
        self._file = file
        if missing := sorted(set(self._blobs) - names):
            raise BundleError(f"{path} does not hold {missing[0]!r}")

    def get(self, index: int) -> Tensor:
        """Return a tensor; its memory is the bundle's own.

        Raises:
            BundleError: there is none, or its description does not fit the file.
        """
        if not 0 <= index < len(self._records):
            raise BundleError(f"it names tensor {index} of {len(self._records)}")
        if index not in self._tensors:
            record = self._records[index]
            made = self._strided(record) if isinstance(record, StridedTensor) else self._sparse(record, index)
            self._tensors[index] = made
        return self._tensors[index]

    def _sparse(self, record: SparseTensor, index: int) -> Tensor:
        if max(record.indices, record.values) >= index:
            raise BundleError(f"sparse tensor {index} is made of later ones")
        parts = self.get(record.indices), self.get(record.values)
        try:
            return torch.sparse_coo_tensor(
                *parts, record.shape, check_invariants=True, is_coalesced=record.is_coalesced
            )
        except (RuntimeError, TypeError, ValueError) as error:
            raise BundleError(f"sparse tensor {index} is not valid: {error}") from error

    def _strided(self, record: StridedTensor) -> Tensor:
        dtype, device = dtype_called(record.dtype), self.device(record.device)
        if len(record.stride) != len(record.shape):
            raise BundleError("a tensor has another number of strides than of sizes")
        if not math.prod(record.shape):
            return torch.empty(0, dtype=dtype, device=device).as_strided(record.shape, record.stride)
        blob = self._blobs.get(record.blob)
        if blob is None or blob.dtype != record.dtype:
            raise BundleError(f"a {record.dtype} tensor lies in {record.blob!r}, which holds no such thing")
        if record.is_spread:
            return self._spread(record, blob, device)
        if record.offset + extent(record.shape, record.stride) > blob.elements:
            raise BundleError(f"a tensor reaches beyond the end of {record.blob!r}")
        stretch = self._stretch(record.blob, blob, device)
        return stretch.as_strided(record.shape, record.stride, stretch.storage_offset() + record.offset)

    def _spread(self, record: StridedTensor, blob: Blob, device: torch.device) -> Tensor:
        once = without_repeats(record.shape, record.stride)
        length = extent(record.shape, record.stride)
        if math.prod(once) != blob.elements or length > MOST_SPREAD * blob.elements:
            raise BundleError(f"a tensor does not fit {record.blob!r}")
        made = torch.empty(length, dtype=dtype_called(blob.dtype), device=device)
        elements = self._stretch(record.blob, blob, device)
        made.as_strided(once, record.stride).copy_(elements.reshape(once))
        return made.as_strided(record.shape, record.stride)

    def _stretch(self, name: str, blob: Blob, device: torch.device) -> Tensor:
        if (name, device) not in self._stretches:
            self._stretches[name, device] = self._read(name, blob, device)
        return self._stretches[name, device]

    def _read(self, name: str, blob: Blob, device: torch.device) -> Tensor:
        dtype = dtype_called(blob.dtype)
        try:
            found = self._file.get_tensor(name).reshape(-1).view(torch.uint8)
        except (SafetensorError, RuntimeError) as error:
            raise BundleError(f"{name!r} cannot be read: {error}") from error
        size = found.numel()
        if size != blob.elements * dtype.itemsize or blob.alignment % dtype.itemsize:
            raise BundleError(f"{name!r} has {size} bytes, which are not {blob.elements} x {blob.dtype}")
        memory = torch.empty(size + 2 * ALIGNMENT, dtype=torch.uint8, device=device)
        skipped = (blob.alignment - memory.data_ptr()) % ALIGNMENT
        memory[skipped : skipped + size].copy_(found)
        return memory[skipped : skipped + size].view(dtype)

    def device(self, name: str) -> torch.device:
        """Return the device of that name, or the CPU where this machine lacks it.

        Raises:
            BundleError: it is no device.
        """
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise BundleError(f"{name!r} is not a device") from error
        if device.type == "cuda" and (device.index or 0) < torch.cuda.device_count():
            return device
        if device.type != "cpu":
            self.replaced_devices.add(name)
        return torch.device("cpu")


def dtype_called(name: str) -> torch.dtype:
    """Return a dtype by its name, such as ``"float32"``.

    Raises:
        BundleError: this torch has none of that name.
    """
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise BundleError(f"this torch has no dtype {name!r}")
    return dtype


def _check_file(path: Path, *, size: int, crc32: int) -> None:
    """Refuse a file that is none, or that is not the one that was written."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode):
            raise BundleError(f"{path} is not a regular file")
        if found.st_size != size:
            raise BundleError(f"{path} has {found.st_size} bytes; {size} were written")
        checksum = 0
        with path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                checksum = zlib.crc32(data, checksum)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
    if checksum != crc32:
        raise BundleError(f"{path} is damaged: its checksum is not that of the file that was written")
