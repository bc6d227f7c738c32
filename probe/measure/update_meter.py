"""How far an update moves each parameter: the norm of the change over the norm of the parameter.

Used by the step tracker at sampled steps, on the training thread: parameters are copied just before the
update and compared just after it. Waits for no CUDA device; there the result is read at a later call.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..compat.host_copy import Copy, HostCopy, StartCopy, is_capturing
from ..compat.torch_foreach import foreach_norm, foreach_sub_
from ..compat.torch_memory import local_shard
from .parameter_copy import ParameterCopy
from .statistics.masked import MaskedValues
from .statistics.statistics import Floats, tensor_norms
from .statistics.tensor_measures import difference_norms

COPY_LIMIT_BYTES: Final = 256 * 1024 * 1024
_MAX_PENDING: Final = 8
"""Results on their way from a device; an older one is given up."""


class UpdateRatios(msgspec.Struct, frozen=True, kw_only=True):
    """What the update of one step did; of several optimizers, as far as they have stepped."""

    step: int
    """Number that the caller gave it."""
    ratio: MaskedValues
    """||after - before|| / ||before|| for each parameter, L2; a shard's own on a sharded parameter. Missing
    where it had no gradient, was not copied, was 0 before, or was moved or converted during the update."""
    total: float | None
    """The same over all that were compared, those that were 0 before included; None when all of them were."""


class UpdatePlaces(NamedTuple):
    """Where C copies parameters to, to look at updates itself."""

    copy: ParameterCopy
    """Whose memory it is."""
    addresses: ctypes.Array[Any]
    """(parameters,) of each, NULL for those that are left out."""
    sizes: ctypes.Array[Any]
    """(parameters,) bytes of each place."""


class UpdateMeter:
    """Measures updates one at a time: `before`, the optimizer's step, `after`, then `read`.

    Args:
        limit_bytes: how much the copy of the parameters may take on each device; smallest are copied first.
        start_copy: stands in for `HostCopy` in tests.

    Attributes:
        reason: why parameters are left out, or why the last update was not measured; None when all is well.
    """

    def __init__(self, limit_bytes: int = COPY_LIMIT_BYTES, start_copy: StartCopy = HostCopy) -> None:
        self.reason: str | None = None
        self._limit_bytes, self._start_copy = limit_bytes, start_copy
        self._copy: ParameterCopy | None = None
        self._armed: list[int] = []
        self._norms: Floats | None = None
        self._pending: deque[_Pending] = deque(maxlen=_MAX_PENDING)
        self._newest: _Norms | None = None

    @property
    def bytes_held(self) -> int:
        """Memory that the copy takes, kept from one measurement to the next."""
        return 0 if self._copy is None else self._copy.bytes_held

    def before(
        self,
        parameters: Sequence[Tensor],
        updated: Collection[int] | None = None,
        norms: Floats | None = None,
    ) -> None:
        """Copy the parameters that have a gradient, just before the update.

        Args:
            parameters: all of the watched model, in layout order; cheapest when it is the same object again.
            updated: identities of those that this optimizer updates; None for all.
            norms: (parameters,) L2 norms as they are now, where they are known anyway: saves measuring them.
        """
        self._armed, self._norms = [], norms
        if is_capturing():
            self.reason = "a CUDA graph is being captured"
            return
        indices = None if self._copy is None else self._copy.find(parameters, updated)
        if self._copy is None or indices is None:
            # The old buffers go before the new ones come.
            self._copy = None
            self._copy = ParameterCopy.of(parameters, self._limit_bytes)
            indices = self._copy.indices_of(updated)
        self.reason = self._copy.reason
        self._armed = self._copy.take([index for index in indices if parameters[index].grad is not None])

    def after(self, parameters: Sequence[Tensor], *, step: int, found_inf: Tensor | None = None) -> None:
        """Compare, just after the update. Do not call it when the optimizer made none: use `cancel`.

        Args:
            parameters: as given to `before`; with others nothing is compared.
            step: number of the step; results of one step are put together.
            found_inf: `optimizer.found_inf` of a fused optimizer under a GradScaler: 1 where it left out the
                update, which then is not measured.
        """
        armed, self._armed = self._armed, []
        copy = self._copy
        if copy is None or not armed or copy.find(parameters, ()) is None or is_capturing():
            return
        same = copy.unchanged(armed)
        if len(same) < len(armed):
            lost = f"{len(armed) - len(same)} of {len(armed)}"
            self.reason = f"{lost} parameters not compared: moved or converted during the update"
        skipped = None if found_inf is None else self._start_copy(found_inf)
        parts = [self._compare(copy, chosen) for chosen in copy.by_kind(same)]
        self._pending.append(_Pending(step, len(copy.parameters), skipped, parts))

    @property
    def has_copy(self) -> bool:
        """Whether memory for the copy is there."""
        return self._copy is not None

    def places(self, parameters: Sequence[Tensor], updated: Collection[int]) -> UpdatePlaces | None:
        """Return where C may copy those to that are updated; None where it cannot.

        Args:
            parameters: all of the watched model, in layout order.
            updated: identities of those that the optimizer updates.
        """
        copy = self._copy
        indices = None if copy is None else copy.find(parameters, updated)
        if copy is None or indices is None or any(device.type != "cpu" for device, _ in copy.flats):
            return None
        addresses, sizes = (ctypes.c_void_p * len(parameters))(), (ctypes.c_int64 * len(parameters))()
        wanted = set(indices)
        for index, address, size in copy.places():
            if index in wanted:
                addresses[index], sizes[index] = address, size
        # C needs none: of 2,000 tensors they take 0.8 MiB.
        copy.let_go_of_views()
        return UpdatePlaces(copy, addresses, sizes)

    def cancel(self) -> None:
        """The update was skipped, or raised: there is nothing to compare."""
        self._armed = []

    def read(self, *, wait: bool = False) -> UpdateRatios | None:
        """Return the oldest result that is on the host and was not read yet; None when there is none.

        Args:
            wait: for the device, at the end of a run.
        """
        while self._pending and (wait or self._pending[0].is_ready):
            pending = self._pending.popleft()
            norms = pending.norms()
            if norms is not None:
                self._newest = norms.joined_to(self._newest)
                return self._newest.ratios()
        return None

    def release(self) -> None:
        """Let go of all memory: the feature is off, or the session ends."""
        self._copy = self._newest = self._norms = None
        self._pending.clear()
        self._armed = []

    def _compare(self, copy: ParameterCopy, chosen: list[int]) -> _Part:
        """Norms of the old values and of the differences, for parameters of one device and type."""
        old = [copy.views[index] for index in chosen]
        new = [local_shard(copy.parameters[index]) for index in chosen]
        with torch.no_grad():
            if old[0].device.type == "cpu":
                norms = tensor_norms(old) if self._norms is None else self._norms[chosen]
                return _Part(chosen, _OnHost(np.stack([norms, difference_norms(new, old)])))
            accumulator = torch.float64 if old[0].dtype is torch.float64 else torch.float32
            before = foreach_norm(old, 2, accumulator)
            # In the copy's own place: no memory is allocated that could be as large again.
            foreach_sub_(old, new)
            change = foreach_norm(old, 2, accumulator)
            return _Part(chosen, self._start_copy(torch.stack([*before, *change]).view(2, -1)))


# -- the result


class _OnHost(msgspec.Struct, frozen=True):
    """A result that is there at once."""

    values: Floats
    is_ready: bool = True

    def read(self) -> Tensor:
        return torch.from_numpy(self.values)


class _Part(msgspec.Struct, frozen=True):
    """(2, n) norms, before and of the change, of the n parameters at `indices`."""

    indices: list[int]
    norms: Copy


class _Pending(msgspec.Struct, frozen=True):
    """A result on its way to the host."""

    step: int
    count: int
    skipped: Copy | None
    parts: list[_Part] = msgspec.field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        copies: list[Any] = [part.norms for part in self.parts]
        if self.skipped is not None:
            copies.append(self.skipped)
        return all(copy.is_ready for copy in copies)

    def norms(self) -> _Norms | None:
        """Put the parts together; None where the optimizer left the update out after all."""
        if self.skipped is not None and bool(self.skipped.read().any()):
            return None
        values, measured = np.zeros((2, self.count)), np.zeros(self.count, dtype=np.bool_)
        for part in self.parts:
            values[:, part.indices] = part.norms.read().double().numpy()
            measured[part.indices] = True
        return _Norms(self.step, values, measured)


class _Norms(msgspec.Struct, frozen=True):
    """What is known of one step."""

    step: int
    values: Floats
    """(2, parameters): before, and of the change."""
    measured: npt.NDArray[np.bool_]
    """(parameters,)."""

    def joined_to(self, earlier: _Norms | None) -> _Norms:
        """Add what other optimizers did at the same step."""
        if earlier is None or earlier.step != self.step or earlier.values.shape != self.values.shape:
            return self
        values = np.where(self.measured, self.values, earlier.values)
        return _Norms(self.step, values, self.measured | earlier.measured)

    def ratios(self) -> UpdateRatios:
        """Divide where there is something to divide by."""
        before, change = self.values
        # Without a size there is no ratio: an all-zero bias, say, that moves for the first time.
        has_ratio = self.measured & (before != 0)
        ratio = np.zeros(len(before))
        with np.errstate(all="ignore"):
            np.divide(change, before, out=ratio, where=has_ratio)
            lengths = np.sqrt(np.square(self.values[:, self.measured]).sum(axis=1))
        total = float(lengths[1] / lengths[0]) if lengths[0] else None
        return UpdateRatios(step=self.step, ratio=MaskedValues(ratio, ~has_ratio), total=total)
