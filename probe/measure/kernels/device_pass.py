"""Measures many tensors of a CUDA device in one pass: two launches, where torch takes several for each.

The pass is `device_pass.cu`, compiled on a thread of its own by the NVRTC that torch comes with. It measures
from the step on by which it is there and has found on planted tensors what torch finds. Until then, and where
it cannot be had (another accelerator, no NVRTC), torch's functions do. Called on the training thread.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...compat.host_copy import is_capturing, waiting_is_an_error
from ...compat.nvrtc import CudaCallError, CudaModule, compile_cuda

_logger = logging.getLogger(__name__)
_SOURCE: Final = Path(__file__).with_name("device_pass.cu")
VALUES: Final = 7
"""Rows of what is found: L2 norm, largest absolute element (NaN where there is one), sum; then how many
elements are NaN, infinite, 0, and at or beyond the bounds."""
NO_BOUNDS: Final = (math.nan, math.nan)
"""Nothing lies at or beyond these."""
_TENSORS, _THREADS = 440, 256
"""As in device_pass.cu: addresses that one launch takes, threads of a block."""
_LEAST_ELEMENTS: Final = 16_384
_MOST_BLOCKS: Final = 8192
_NAMES: Final = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_MOST_TABLES: Final = 64
_PLANTED_BOUNDS: Final = (-1.0, 2.0)
_Kinds = tuple[tuple[int, ...], tuple[torch.dtype, ...], int]


class _Launch(NamedTuple):
    """Tensors of one dtype that one launch measures."""

    function: ctypes.c_void_p
    at: tuple[int, ...]
    """Their places in the list."""
    first_tensor: ctypes.c_int64
    first_block: ctypes.c_int64
    blocks: int


class _Table(NamedTuple):
    """How tensors of some sizes and dtypes are cut into blocks."""

    on_device: Tensor
    """(3 tensors + 1 + blocks,) int64: first blocks, sizes, places in the list, the owner of each block."""
    per_block: ctypes.c_int64
    blocks: int
    launches: tuple[_Launch, ...]


class _Pointers(ctypes.Structure):
    """`Table` of device_pass.cu."""

    _fields_ = [(name, ctypes.c_int64) for name in ("first", "sizes", "places", "owners")]


class _Bounds(ctypes.Structure):
    """`Bounds` of device_pass.cu."""

    _fields_ = [("low", ctypes.c_double), ("high", ctypes.c_double)]


class Cut(NamedTuple):
    """Where a list of tensors is cut, in the order in which they are measured. Pure."""

    order: list[int]
    """Places of the tensors in the list: those of one dtype together."""
    first: np.ndarray[Any, np.dtype[np.int64]]
    """(tensors + 1,) first block of each, and the number of blocks."""
    per_block: int
    """Elements that a block measures; the last of a tensor fewer."""


def cut(sizes: Sequence[int], dtypes: Sequence[torch.dtype]) -> Cut:
    """Cut tensors of these sizes so that there are enough blocks for a device, and not too many to join."""
    order = sorted(range(len(sizes)), key=lambda place: (_NAMES[dtypes[place]], place))
    per_block = max(_LEAST_ELEMENTS, -(-sum(sizes) // _MOST_BLOCKS // 1024) * 1024)
    of_each = [-(-sizes[place] // per_block) for place in order]
    return Cut(order, np.concatenate(([0], np.cumsum(of_each))).astype(np.int64), per_block)


class DevicePass:
    """The pass, loaded on one device.

    Args:
        device: a CUDA device.
        compiled: of `compile_cuda`, for it.

    Raises:
        CudaCallError: the driver does not take it.
    """

    def __init__(self, device: torch.device, compiled: bytes) -> None:
        self._device = device
        with torch.cuda.device(device):
            self._module = CudaModule(compiled)
            self._functions = {dtype: self._module.function(f"pass_{name}") for dtype, name in _NAMES.items()}
            self._join = self._module.function("join")
        self._tables: dict[_Kinds, _Table] = {}

    def measure(self, tensors: Sequence[Tensor], bounds: tuple[float, float] = NO_BOUNDS) -> Tensor | None:
        """Queue the pass on the current stream; return (VALUES, tensors) float64, on the device.

        Waits for nothing, and keeps nothing: the tensors may be changed or freed by what is queued behind.
        None where a tensor is empty or not in one piece, or of another dtype than `_NAMES` has.

        Args:
            tensors: at least one.
            bounds: elements that are at or below the first, or at or above the second, are counted.

        Raises:
            CudaCallError: it could not be launched.
        """
        stream = torch.cuda.current_stream(self._device).cuda_stream
        sizes = tuple([tensor.numel() for tensor in tensors])
        kinds = (sizes, tuple([tensor.dtype for tensor in tensors]), stream)
        # A gradient's strides may differ from step to step; the rest the table knows.
        in_order, negated = {t.is_contiguous() for t in tensors}, {t.is_neg() for t in tensors}
        if True in negated or (False in in_order and not all(map(_is_in_one_piece, tensors))):
            return None
        with torch.cuda.device(self._device):
            table = self._tables.get(kinds) or self._make_table(kinds)
            return None if table is None else self._launch(table, tensors, stream, _Bounds(*bounds))

    def _launch(self, table: _Table, tensors: Sequence[Tensor], stream: int, bounds: _Bounds) -> Tensor:
        count = len(tensors)
        parts = torch.empty((table.blocks, VALUES), dtype=torch.float64, device=self._device)
        found = torch.empty((VALUES, count), dtype=torch.float64, device=self._device)
        base = table.on_device.data_ptr()
        pointers = _Pointers(
            base, base + 8 * (count + 1), base + 8 * (2 * count + 1), base + 8 * (3 * count + 1)
        )
        at_parts = ctypes.c_void_p(parts.data_ptr())
        for function, at, first_tensor, first_block, blocks in table.launches:
            addresses = (ctypes.c_uint64 * _TENSORS)(*[tensors[place].data_ptr() for place in at])
            arguments = [addresses, pointers, first_tensor, first_block, table.per_block, bounds, at_parts]
            self._module.launch(function, blocks, _THREADS, stream, arguments)
        arguments = [pointers, at_parts, ctypes.c_int64(count), ctypes.c_void_p(found.data_ptr())]
        self._module.launch(self._join, count, _THREADS, stream, arguments)
        return found

    def _make_table(self, kinds: _Kinds) -> _Table | None:
        sizes, dtypes, _ = kinds
        if not _NAMES.keys() >= set(dtypes) or 0 in sizes:
            return None
        order, first, per_block = cut(sizes, dtypes)
        owners = np.repeat(np.arange(len(order)), np.diff(first))
        whole = np.concatenate((first, [sizes[place] for place in order], order, owners)).astype(np.int64)
        launches = []
        for begin, end in _runs([dtypes[place] for place in order]):
            blocks = int(first[end] - first[begin])
            function = self._functions[dtypes[order[begin]]]
            tensor, block = ctypes.c_int64(begin), ctypes.c_int64(int(first[begin]))
            launches.append(_Launch(function, tuple(order[begin:end]), tensor, block, blocks))
        # From memory that is not pinned a copy waits.
        pinned = torch.from_numpy(whole).pin_memory()
        on_device = pinned.to(self._device, non_blocking=True)
        table = _Table(on_device, ctypes.c_int64(per_block), int(first[-1]), tuple(launches))
        if len(self._tables) >= _MOST_TABLES:
            self._tables.clear()
        self._tables[kinds] = table
        return table


def _runs(dtypes: Sequence[torch.dtype]) -> list[tuple[int, int]]:
    """Cut a list whose dtypes stand together: one dtype each, and no more than a launch takes."""
    runs, begin = [], 0
    for _, group in itertools.groupby(dtypes):
        end = begin + len(list(group))
        runs += [(at, min(at + _TENSORS, end)) for at in range(begin, end, _TENSORS)]
        begin = end
    return runs


def _is_in_one_piece(tensor: Tensor) -> bool:
    """Whether all elements lie together, in whatever order."""
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


# ------------------------------------------------------------------------------------- one for each device


class _Making:
    """The pass of one device, while it is made and afterwards."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._compiled: bytes | None = None
        self._has_failed = False
        self._made: DevicePass | None = None
        capability = torch.cuda.get_device_capability(device)
        # No daemon: at the end of the process a compiler must not be stopped in its work. It takes 0.3 s.
        self._thread = threading.Thread(
            target=self._compile, args=(capability,), name="nanscope-nvrtc", daemon=False
        )
        try:
            self._thread.start()
        except RuntimeError as error:  # the process may have no more of them, or be about to end
            self.give_up(str(error))

    def _compile(self, capability: tuple[int, int]) -> None:
        try:
            self._compiled = compile_cuda(_SOURCE.read_bytes(), _SOURCE.name, capability)
        except (CudaCallError, OSError, AttributeError) as error:
            self.give_up(str(error))

    def get(self) -> DevicePass | None:
        """Return the pass once it has been compiled, loaded and checked; the check waits for the device."""
        if self._made is None and self._compiled is not None and not self._has_failed:
            if is_capturing() or waiting_is_an_error():
                return None
            try:
                made = DevicePass(self._device, self._compiled)
                problem = _difference(made, self._device)
            except (RuntimeError, AttributeError) as error:
                # The device may have no memory left, the driver none of these calls.
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                self.give_up(problem)
            else:
                self._made = made
        return None if self._has_failed else self._made

    def give_up(self, problem: str) -> None:
        """Leave the measuring to torch from now on."""
        self._has_failed = True
        _logger.info("nanscope: %s is measured by torch's functions: %s", self._device, problem)


_of_devices: dict[torch.device, _Making] = {}


def measure_in_one_pass(tensors: Sequence[Tensor], bounds: tuple[float, float] = NO_BOUNDS) -> Tensor | None:
    """Queue the pass over tensors of one device; see `DevicePass.measure`. None where torch has to measure.

    The first call for a device begins to compile it.
    """
    device = tensors[0].device
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    making = _of_devices.get(device)
    if making is None:
        making = _of_devices[device] = _Making(device)
    made = making.get()
    if made is None:
        return None
    try:
        return made.measure(tensors, bounds)
    except CudaCallError as error:
        making.give_up(str(error))
        return None


def _difference(made: DevicePass, device: torch.device) -> str | None:
    """Compare the pass with torch on planted tensors; waits. None where they agree."""
    generator = torch.Generator().manual_seed(0)
    for dtype in _NAMES:
        planted = [
            torch.randn(size, generator=generator).mul_(3.0).to(dtype) for size in (1, 300, 20_000, 70_001)
        ]
        planted[1][7], planted[3][60_000], planted[2][70:90] = math.nan, -math.inf, 0.0
        on_device = [tensor.to(device) for tensor in planted]
        on_device.append(on_device[2][1:])
        found = made.measure(on_device, _PLANTED_BOUNDS)
        if found is None:
            return "planted tensors were not measured"
        expected = torch.stack([_by_torch(tensor.cpu().double()) for tensor in on_device], dim=1)
        if not torch.allclose(found.cpu(), expected, rtol=1e-9, atol=1e-9, equal_nan=True):
            return f"the pass over {dtype} does not find what torch finds"
    return None


def _by_torch(values: Tensor) -> Tensor:
    """(VALUES,) of one tensor on the host."""
    low, high = _PLANTED_BOUNDS
    counted = (values.isnan(), values.isinf(), values == 0, (values <= low) | (values >= high))
    sums = [values.square().sum().sqrt(), values.abs().max(), values.sum()]
    return torch.stack([*sums, *(which.sum() for which in counted)]).double()
