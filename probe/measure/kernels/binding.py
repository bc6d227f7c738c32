"""Finds, loads and calls the compiled kernel through ctypes; nothing happens before the first call.

Used by `statistics`, `tensor_measures`, `tensor_pairs` and `magnitudes`, which know what to do where there is
none.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...guard import is_scripts
from ..statistics.torch_statistics import ROWS, Floats
from . import tensor_reader
from .compile import FOLDER, LIBRARY_NAME, source_id

MISSING: Final = 0
F64: Final = 2
COMPLEX: Final = 8
KNOWN_SPECIAL: Final = 254
"""Kinds of tensors, as the C side has them; see `kernel.c`. From KNOWN_SPECIAL on, left to torch."""
MARKED: Final = 512
"""Elements of a kept tensor for each of its marks."""
NOT_BUILT: Final = "not built: no C compiler was at hand when nanscope was installed"
_WIDEST_BITS: Final = 512
LIBRARY: Final = FOLDER / LIBRARY_NAME


class Job(ctypes.Structure):
    """Mirrors `Job` in kernel.c."""

    _fields_ = [
        ("count", ctypes.c_int64),
        ("pointers", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("kinds", ctypes.c_void_p),
        ("block", ctypes.c_void_p),
        ("bounds", ctypes.c_void_p),
        ("fractions", ctypes.c_void_p),
        ("total_norm", ctypes.c_double),
        ("nonfinite", ctypes.c_int64),
        ("missing", ctypes.c_int64),
        ("special", ctypes.c_int64),
        ("complex_count", ctypes.c_int64),
        ("elements", ctypes.c_int64),
    ]


class Batch:
    """The memory that one list of tensors is gathered and measured in; reused from step to step."""

    def __init__(self, count: int) -> None:
        self.pointers = np.zeros(count, dtype=np.uint64)
        self.sizes = np.zeros(count, dtype=np.int64)
        self.kinds = np.zeros(count, dtype=np.uint8)
        self._block: Floats | None = None
        self._bounds: Floats | None = None
        self._fractions: Floats | None = None
        self.job = Job(
            count=count,
            pointers=self.pointers.ctypes.data,
            sizes=self.sizes.ctypes.data,
            kinds=self.kinds.ctypes.data,
        )
        self.address = ctypes.addressof(self.job)

    @property
    def block(self) -> Floats:
        """(ROWS, tensors) results, made for the first who asks: most are written elsewhere, if at all."""
        if self._block is None:
            self._block = np.zeros((ROWS, self.job.count))
            self.job.block = self._block.ctypes.data
        return self._block

    @property
    def fractions(self) -> Floats:
        """(2, tensors) shares of zeros and of elements outside of the bounds, once these are known."""
        if self._fractions is None:
            self._fractions = np.zeros((2, self.job.count))
            self.job.fractions = self._fractions.ctypes.data
        return self._fractions

    def see_to_room(self) -> None:
        """Have the kernel write its results here, where it has no other place for them."""
        if self.job.block is None:
            _ = self.block
        if self.job.bounds is not None and self.job.fractions is None:
            _ = self.fractions

    def count_within(self, bounds: Floats) -> None:
        """Have zeros counted too, and elements outside of the (2, tensors) bounds; NaN bounds hold always."""
        self._bounds = np.ascontiguousarray(bounds, dtype=np.float64)
        self.job.bounds = self._bounds.ctypes.data

    @property
    def special(self) -> npt.NDArray[np.intp]:
        """Indices of the tensors that must not be read by pointer."""
        return np.flatnonzero(self.kinds >= KNOWN_SPECIAL)


class Kernel:
    """The functions of the library. All addresses given to it must be alive until it returns."""

    def __init__(self, path: Path) -> None:
        library, locked = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
        self.source = _function(library, "nanscope_source", ctypes.c_char_p)().decode()
        self._choose = _function(library, "nanscope_choose", ctypes.c_char_p, ctypes.c_int)
        self._gather = _function(locked, "nanscope_gather", None, *[ctypes.c_void_p] * 2, ctypes.py_object)
        listed = (*[ctypes.c_void_p] * 2, ctypes.py_object)
        self._measure_list = _function(locked, "nanscope_measure_list", ctypes.c_int, *listed)
        self._measure = _function(library, "nanscope_statistics", None, ctypes.c_void_p)
        pairs = (ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int, ctypes.c_void_p)
        self._pairs = _function(library, "nanscope_pairs", None, *pairs)
        two_lists = (ctypes.c_int64, *[ctypes.c_void_p] * 6)
        self._renew = _function(library, "nanscope_turn", None, *two_lists)
        self._moments = _function(library, "nanscope_moments", None, *two_lists)
        histograms = (ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int64, *[ctypes.c_void_p] * 2)
        self._histograms = _function(library, "nanscope_histograms", None, *histograms)
        units = (ctypes.c_uint64, ctypes.c_int, *[ctypes.c_int64] * 3, ctypes.c_void_p)
        self._units = _function(library, "nanscope_units", None, *units)
        self._python = tensor_reader.find()
        self._python_address = 0 if self._python is None else ctypes.addressof(self._python)

    @property
    def can_gather(self) -> bool:
        """Whether this torch says through its C interface where a tensor's memory is."""
        return bool(self._python_address)

    def choose(self, bits: int = _WIDEST_BITS) -> str:
        """Use vectors of at most so many bits from now on; return the name of the widest that there is."""
        name: str = self._choose(bits).decode()
        return name

    def gather(self, batch: Batch, tensors: list[Any]) -> None:
        """Look up addresses, sizes and kinds; as many tensors (or None) as the batch has room for."""
        if len(tensors) != batch.job.count:
            raise ValueError(f"{len(tensors)} tensors for a batch of {batch.job.count}")
        self._gather(batch.address, self._python_address, tensors)

    def measure_list(self, batch: Batch, tensors: list[Any]) -> bool:
        """Gather and measure at once, the list as long as the batch; a long pass gives Python's lock away.

        Returns:
            False where there are complex tensors, which the caller has to look at; then nothing is measured.
        """
        batch.see_to_room()
        return bool(self._measure_list(batch.address, self._python_address, tensors))

    def measure(self, batch: Batch) -> None:
        """Measure what was gathered, without Python's lock; the caller holds the tensors."""
        batch.see_to_room()
        self._measure(batch.address)

    def pair_sums(self, first: Batch, second: Batch, *, product: bool) -> Floats:
        """Return the L2 norms of differences, or the sums of products; kinds and sizes must be equal."""
        results = np.zeros(first.job.count)
        job, other = first.job, second.job
        self._pairs(
            job.count, job.pointers, other.pointers, job.sizes, job.kinds, product, results.ctypes.data
        )
        return results

    def renew(self, new: Batch, old: Batch, marks: npt.NDArray[np.uint64]) -> Floats:
        """Return the (2, tensors) sums of new * new and of new * old, and copy the new tensors to the old.

        Sizes, of which 0 leaves a tensor out, and kinds are the new batch's; the old one's must be equal.
        `marks` has for each the address of a byte for every MARKED elements of the old one, 0 where these
        are known to be +0, and is kept up to date; or no address.
        """
        results, job = np.zeros((2, new.job.count)), new.job
        addresses = (job.sizes, job.kinds, marks.ctypes.data, results.ctypes.data)
        self._renew(job.count, job.pointers, old.job.pointers, *addresses)
        return results

    def moments(self, first: Batch, second: Batch, eps: Floats) -> Floats:
        """Return the (3, tensors) L2 norms of first, second and first / (sqrt(second) + eps).

        Of real 16- and 32-bit elements; sizes as for `renew`.
        """
        results, job = np.zeros((3, first.job.count)), first.job
        added = np.ascontiguousarray(eps, dtype=np.float64)
        addresses = (job.sizes, job.kinds, added.ctypes.data, results.ctypes.data)
        self._moments(job.count, job.pointers, second.job.pointers, *addresses)
        return results

    def histograms(self, batch: Batch, edges: npt.NDArray[np.uint32], counts: npt.NDArray[np.int64]) -> None:
        """Count magnitudes: `counts` is (tensors, bins), `edges` are the bits of the upper ones as floats."""
        job = batch.job
        bins = counts.shape[1]
        addresses = (edges.ctypes.data, counts.ctypes.data)
        self._histograms(job.count, job.pointers, job.sizes, job.kinds, bins, *addresses)

    def active_units(self, batch: Batch, outer: int, units: int, inner: int) -> npt.NDArray[np.bool_]:
        """Return (units,) which units of the only tensor, (outer, units, inner) in memory, are not all 0."""
        active = np.zeros(units, dtype=np.bool_)
        kind = int(batch.kinds[0]) & ~COMPLEX
        self._units(int(batch.pointers[0]), kind, outer, units, inner, active.ctypes.data)
        return active


@dataclass(frozen=True, slots=True)
class KernelStatus:
    """Which way CPU tensors are measured, and why."""

    kernel: Kernel | None
    """None: by torch and numpy."""
    reason: str
    """For the user: the kernel's vector width, or why there is no kernel."""


def kernel() -> Kernel | None:
    """The kernel, loaded at the first call; None where there is none or NANSCOPE_KERNEL is ``off``."""
    return status().kernel


def status() -> KernelStatus:
    """Say which way runs and why, for `doctor`; loads the kernel at the first call."""
    if os.environ.get("NANSCOPE_KERNEL", "").strip().lower() == "off":
        return KernelStatus(None, "switched off by NANSCOPE_KERNEL=off")
    return load(LIBRARY)


@cache
def load(path: Path) -> KernelStatus:
    """Load a library once and check that it is fit for use; never raises."""
    if not path.exists():
        return KernelStatus(None, NOT_BUILT)
    try:
        loaded = Kernel(path)
    except (OSError, AttributeError) as error:
        return KernelStatus(None, f"the compiled kernel does not load: {error}")
    if loaded.source != source_id():
        return KernelStatus(None, "the compiled kernel is of another version: install nanscope again")
    if not loaded.can_gather:
        return KernelStatus(None, "this version of torch has no C interface to its tensors")
    return KernelStatus(loaded, f"native kernel, {loaded.choose()}")


class _Method(ctypes.Structure):
    """Mirrors `PyMethodDef`."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_void_p),
    ]


_ERROR_FUNCTIONS: Final = (
    *("PyObject_Vectorcall", "Py_DecRef", "PyErr_Occurred", "PyErr_Fetch", "PyErr_NormalizeException"),
    *("PyErr_Restore", "PyException_SetTraceback", "Py_AddPendingCall"),
)


class _ErrorApi(ctypes.Structure):
    """Mirrors `ErrorApi`."""

    _fields_ = [
        ("functions", ctypes.c_void_p * len(_ERROR_FUNCTIONS)),
        ("is_scripts", ctypes.c_void_p),
        ("yes", ctypes.c_void_p),
    ]


@cache
def _error_api() -> _ErrorApi:
    """How callbacks tell failures of ours from what the script is to get."""
    api = _ErrorApi(is_scripts=id(is_scripts), yes=id(True))
    found = [ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value for name in _ERROR_FUNCTIONS]
    api.functions[:] = found
    return api


_numbers: Final[dict[int, int]] = {}
"""Those that methods are given as `self`, which live as long as the process."""


def methods_of(library: ctypes.PyDLL, name: str, *, numbered: str = "") -> dict[str, Any]:
    """Make functions of Python of the table of methods that a function of the library returns, by name.

    Args:
        library: the kernel.
        name: of the function.
        numbered: of the method of which there are many; with a number it makes the one that has it as `self`.
    """
    first, make = _first_method(library, name), _maker_of_functions()
    functions: dict[str, Any] = {}
    while (method := _Method.from_address(first)).name is not None:
        found = method.name.decode()
        if found == numbered:
            functions[found] = cache(
                lambda number, at=first: make(at, id(_numbers.setdefault(number, number)), None)
            )
        else:
            functions[found] = make(first, None, None)
        first += ctypes.sizeof(_Method)
    return functions


def at_death(function: Callable[[], object]) -> Callable[[object], object]:
    """Return the callback of a weak reference that calls a function which may be called twice.

    Python prints what is raised where an object dies, and continues. What a signal handler raises there is
    raised on the main thread once the callback has returned; the function is called again before. Where
    there is no kernel, Python prints it.
    """
    if kernel() is None:
        return lambda _: function()
    made: Callable[[object], object] = _maker_of_functions()(_death_method(), id(function), None)
    return made


@cache
def _death_method() -> int:
    return _first_method(ctypes.PyDLL(str(LIBRARY)), "nanscope_death_methods")


@cache
def _maker_of_functions() -> Any:
    return ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 3)(
        ("PyCFunction_NewEx", ctypes.pythonapi)
    )


def _first_method(library: ctypes.PyDLL, table: str) -> int:
    _function(library, "nanscope_errors_use", None, ctypes.c_void_p)(ctypes.addressof(_error_api()))
    return int(_function(library, table, ctypes.c_void_p)())


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function
