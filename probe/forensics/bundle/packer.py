"""Collects tensors as stretches of memory, copies them, and writes the copies to a safetensors file.

What shares a storage in the run shares one in the bundle, strides included: aliases, views and expanded
tensors come back as what they were. They are collected and copied on the training thread, at a fault.
"""

from __future__ import annotations

import json
import math
import os
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...compat import torch_memory
from ...compat.torch_memory import coo_parts
from ...errors import BundleError
from ...own_files import lift
from .schema import ALIGNMENT, Blob, SparseTensor, StridedTensor, TensorRecord, extent, without_repeats

MOST_SPREAD: Final = 1024
"""Gaps between the elements of a tensor are kept up to this many times its size."""
_MOST_GAP: Final = 4
"""A stretch that is more than this many times as long as what is used of it is not written as one."""
_SMALL_ELEMENTS: Final = 1 << 16
SMALL_BYTES: Final = 64 * 1024
"""What is not larger is copied however little time is left."""
PARAMETERS, BUFFERS, ATTRIBUTES = "parameters/", "buffers/", "attributes/"
"""How the labels of the model's state begin."""
_PIECE_BYTES: Final = 8 * 1024**2
"""So much is copied between two looks at the time."""
_LENGTH: Final = struct.Struct("<Q")
_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}
"""What safetensors calls a dtype; all others are written as bytes."""


Memory = npt.NDArray[np.uint8]
"""The elements of a copied tensor."""


class WrittenTensors(NamedTuple):
    """What there is to know of a written file."""

    records: list[TensorRecord]
    blobs: dict[str, Blob]
    size: int
    crc32: int


@dataclass(slots=True)
class _Stretch:
    """What is used of one storage, in elements from its beginning."""

    first: int
    end: int
    used: int = 0
    views: list[int] = field(default_factory=list)


class _View(NamedTuple):
    """A tensor that is part of a stretch, or has no elements."""

    tensor: Tensor
    label: str


class _Layout(NamedTuple):
    """What is written of each stretch, by name, and the records of all tensors by position."""

    blobs: dict[str, tuple[Blob, Tensor]]
    records: dict[int, TensorRecord]

    def add(self, label: str, source: Tensor, *, alignment: int = 0) -> str:
        """Take in what is to be written; return its name."""
        name, number = label, 1
        while name in self.blobs or not name:
            number += 1
            name = f"{label}~{number}"
        blob = Blob(dtype=dtype_name(source.dtype), elements=source.numel(), alignment=alignment)
        self.blobs[name] = (blob, source)
        return name

    def sources(self, *, of_state: bool = False) -> list[Tensor]:
        """What is copied, or of that the model's state."""
        return [source for name, (_, source) in self.blobs.items() if not of_state or _is_state(name)]


class TensorPacker:
    """The tensors of one bundle. Nothing is copied before `copy`; they must not change until then."""

    def __init__(self) -> None:
        self._views: list[_View | SparseTensor] = []
        self._stretches: dict[Any, _Stretch] = {}
        self._known: dict[Any, int] = {}
        self._layout: _Layout | None = None

    def add(self, tensor: Tensor, label: str) -> int:
        """Take a tensor in; return its position. The same view of the same memory gets the same one.

        Raises:
            BundleError: it is of a kind that cannot be written; the message says which.
        """
        self._layout = None
        tensor = tensor.detach()
        if type(tensor) is not Tensor:
            raise BundleError(f"a {type(tensor).__name__}")
        if tensor.layout is torch.sparse_coo:
            return self._add_sparse(tensor, label)
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
            kind = (
                "quantised" if tensor.is_quantized else "nested" if tensor.is_nested else str(tensor.layout)
            )
            raise BundleError(f"a {kind} tensor on {tensor.device}")
        tensor = tensor.resolve_conj().resolve_neg()
        key = (str(tensor.device), torch_memory.storage_key(tensor), tensor.dtype)
        identity = (key, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        if identity in self._known and tensor.numel():
            return self._known[identity]
        index = self._known[identity] = len(self._views)
        self._views.append(_View(tensor, label))
        if tensor.numel():
            self._stretch(key, tensor).views.append(index)
        return index

    def _add_sparse(self, tensor: Tensor, label: str) -> int:
        where, what = coo_parts(tensor)
        indices = self.add(where, f"{label}.indices")
        values = self.add(what, f"{label}.values")
        self._views.append(
            SparseTensor(
                indices=indices, values=values, shape=list(tensor.shape), is_coalesced=tensor.is_coalesced()
            )
        )
        return len(self._views) - 1

    def _stretch(self, key: Any, tensor: Tensor) -> _Stretch:
        first = int(tensor.storage_offset())
        end = first + extent(tensor.shape, tensor.stride())
        stretch = self._stretches.setdefault(key, _Stretch(first, end))
        stretch.first, stretch.end = min(stretch.first, first), max(stretch.end, end)
        stretch.used += math.prod(without_repeats(tensor.shape, tensor.stride()))
        return stretch

    @property
    def nbytes(self) -> int:
        """How much `copy` will copy."""
        return sum(map(_bytes, self._lay_out().sources()))

    @property
    def state_nbytes(self) -> int:
        """How much of that is the model's state."""
        return sum(map(_bytes, self._lay_out().sources(of_state=True)))

    def copy(self, copies: Copies) -> CopiedTensors | None:
        """Copy all to the host, to be written while they change; None where that takes too long."""
        layout = self._lay_out()
        copied: dict[str, Memory] = {}
        for name, (_, source) in layout.blobs.items():
            if (memory := copies.of(source, is_state=_is_state(name))) is None:
                return None
            copied[name] = memory
        records = [layout.records[index] for index in range(len(self._views))]
        return CopiedTensors(layout.blobs, copied, records)

    def _lay_out(self) -> _Layout:
        if self._layout is not None:
            return self._layout
        layout = self._layout = _Layout({}, {})
        for stretch in self._stretches.values():
            if stretch.end - stretch.first > max(_MOST_GAP * stretch.used, _SMALL_ELEMENTS):
                for index in stretch.views:
                    self._lay_out_alone(index, layout)
            else:
                self._lay_out_together(stretch, layout)
        for index, view in enumerate(self._views):
            if isinstance(view, SparseTensor):
                layout.records[index] = view
            elif index not in layout.records:
                layout.records[index] = _record(view.tensor, "", view.tensor.stride())
        return layout

    def _lay_out_together(self, stretch: _Stretch, layout: _Layout) -> None:
        views = {index: view for index in stretch.views if isinstance(view := self._views[index], _View)}
        base, label = next(iter(views.values()))
        source = base.as_strided((stretch.end - stretch.first,), (1,), stretch.first)
        if len(views) == 1 and base.is_contiguous():
            source = base  # Other programs then read it with its shape.
        name = layout.add(label, source, alignment=source.data_ptr() % ALIGNMENT)
        for index, (tensor, _) in views.items():
            offset = int(tensor.storage_offset()) - stretch.first
            layout.records[index] = _record(tensor, name, tensor.stride(), offset=offset)

    def _lay_out_alone(self, index: int, layout: _Layout) -> None:
        """A small part of a large storage: its own elements."""
        view = self._views[index]
        assert isinstance(view, _View)
        tensor, stride = view.tensor, view.tensor.stride()
        once = tensor.as_strided(without_repeats(tensor.shape, stride), stride)
        if extent(tensor.shape, stride) <= MOST_SPREAD * once.numel():
            name = layout.add(view.label, once)
            layout.records[index] = _record(tensor, name, stride, is_spread=True)
        else:
            in_order = torch.empty(tensor.shape, device="meta").stride()
            layout.records[index] = _record(tensor, layout.add(view.label, tensor), in_order)


class Copies:
    """Copies on the host: each is made once, whichever packers ask for it.

    Args:
        most_s: of this thread's processor time, for all but the model's state.
    """

    def __init__(self, most_s: float = math.inf) -> None:
        self._left_s = most_s
        self._made: dict[Any, tuple[Tensor, Memory]] = {}
        """With the source, so that nothing else gets its address."""

    def of(self, source: Tensor, *, is_state: bool) -> Memory | None:
        """Return a tensor's elements in their order; None where no time is left to copy them."""
        where = str(source.device), torch_memory.storage_key(source), source.storage_offset()
        key = (*where, source.dtype, tuple(source.shape), source.stride())
        if key in self._made:
            return self._made[key][1]
        began_s = time.thread_time()
        is_free = is_state or _bytes(source) <= SMALL_BYTES
        copied = _copy(source, math.inf if is_free else began_s + self._left_s)
        if not is_state:
            self._left_s -= time.thread_time() - began_s
        if copied is not None:
            self._made[key] = source, copied
        return copied


class CopiedTensors:
    """Tensors that nobody changes, with what is known of them.

    Nothing of torch: it lets go of Python's lock in the middle of its C++ code, also to free a tensor. A
    thread that does so while the interpreter ends is stopped there, and `std::terminate` aborts the process.

    Args:
        blobs: what was copied.
        memory: the copies.
        records: of the tensors, by position.
    """

    def __init__(
        self,
        blobs: Mapping[str, tuple[Blob, Tensor]],
        memory: Mapping[str, Memory],
        records: list[TensorRecord],
    ) -> None:
        self._blobs, self._records = {name: blob for name, (blob, _) in blobs.items()}, records
        # The widest elements first, so that each lies at a multiple of its size.
        order = sorted(blobs, key=lambda name: -blobs[name][1].element_size())
        data = (memoryview(memory[name]) for name in order)  # type: ignore[arg-type]
        self._pieces = [memoryview(_header(blobs, order)), *data]

    @property
    def nbytes(self) -> int:
        """How much `write` will write."""
        return sum(map(len, self._pieces))

    def write(self, path: Path) -> WrittenTensors:
        """Write the file. Any thread.

        Raises:
            OSError: the disk is full, say; a part of the file may be there.
        """
        checksum = size = 0
        descriptor = lift(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with os.fdopen(descriptor, "wb", buffering=_PIECE_BYTES) as file:
            for data in self._pieces:
                file.write(data)
                checksum, size = zlib.crc32(data, checksum), size + len(data)
        return WrittenTensors(records=self._records, blobs=self._blobs, size=size, crc32=checksum)


def _copy(source: Tensor, end_s: float) -> Memory | None:
    """Copy to the host, in pieces; None where it is not done at `end_s` of the thread's processor time."""
    memory = np.empty(_bytes(source), dtype=np.uint8)
    if not len(memory):
        return memory
    copied = torch.from_numpy(memory).view(source.dtype)
    if not source.is_contiguous():
        copied.view(source.shape).copy_(source)
        return memory
    elements, theirs = max(1, _PIECE_BYTES // source.element_size()), source.view(-1)
    for first in range(0, source.numel(), elements):
        if time.thread_time() > end_s:
            return None
        copied[first : first + elements].copy_(theirs[first : first + elements])
    return memory


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_state(label: str) -> bool:
    return label.startswith((PARAMETERS, BUFFERS, ATTRIBUTES))


def dtype_name(dtype: torch.dtype) -> str:
    """``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def _record(
    tensor: Tensor, blob: str, stride: Sequence[int], *, offset: int = 0, is_spread: bool = False
) -> StridedTensor:
    return StridedTensor(
        blob=blob,
        dtype=dtype_name(tensor.dtype),
        shape=list(tensor.shape),
        stride=list(stride),
        offset=offset,
        device=str(tensor.device),
        is_spread=is_spread,
    )


def _header(blobs: Mapping[str, tuple[Blob, Tensor]], order: Sequence[str]) -> bytes:
    """The beginning of a safetensors file: the length of a JSON object, and that object."""
    entries: dict[str, Any] = {}
    offset = 0
    for name in order:
        source = blobs[name][1]
        size = source.numel() * source.element_size()
        known = source.dtype in _NAMES
        entries[name] = {
            "dtype": _NAMES.get(source.dtype, "U8"),
            "shape": list(source.shape) if known else [size],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text
