"""The loss of a step, found by watching what backward is called on. Used on the training thread.

What the graph of each scalar says of its scale is read by `forensics/loss/loss_terms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import torch
from torch import Tensor

from ..compat.host_copy import HostCopy
from ..compat.weak_tables import WeakTable
from ..forensics.loss.loss_terms import LossTerms, read_terms

_ROUNDING: Final = 1e-6
"""1 / d may have been rounded to float32 before the loss was multiplied by it."""
_LEAST_SHARE: Final = 0.5
"""Of the items that a trainer divides by, so many are in the losses: a language model leaves out the first of
each sample. Fewer, and the losses are divided by something else. `hot_ring.h` has both limits too."""


class StepLoss(NamedTuple):
    """Loss of one step in both forms; None when backward was never called on a scalar."""

    value: float | None
    """Mean over the micro-steps, scale and accumulation's divisor undone; see `LossMeter`."""
    raw: float | None
    """Summed as backward received it."""


class LossSite(NamedTuple):
    """Where a backward was called, as far as it tells one loss of a step from another."""

    line: object = None
    """Compared with others alone; None where it says nothing: parameters were changed since the backward
    before, say, as between the two passes of sharpness-aware minimisation."""
    is_reduced: bool = False
    """Whether DistributedDataParallel averaged the gradients after it."""


_NOWHERE: Final = LossSite()


class _Scalar(msgspec.Struct):
    """What backward was called on once."""

    raw: Tensor
    loss: Tensor
    """The same tensor, or what a GradScaler made it of."""
    terms: LossTerms
    site: LossSite
    value: float | None = None
    """Of `raw`, once it has been read."""

    def read(self) -> float:
        if self.value is None:
            self.value = float(self.raw)
        return self.value


class LossMeter:
    """Collects the scalars of one step without reading them; `read` brings them to the host at once.

    The loss is what the script's author would print. The scalars of one kind are the micro-steps of an
    accumulation: their mean counts, with the divisor undone, or their sum where a trainer has divided them by
    the items of all of them. Losses of different kinds are added. Of one kind are those whose graphs end in
    the same operation and whose backward is called on the same line, or with and without `no_sync`.
    """

    def __init__(self) -> None:
        self._scalars: list[_Scalar] = []
        self._accumulation: float | None = None
        self._unscaled: WeakTable[Tensor, tuple[Tensor, LossTerms]] = WeakTable()
        self.was_scaled = False
        """Whether a GradScaler scaled a loss of this step."""

    @property
    def accumulation(self) -> float | None:
        """What losses were divided by when that was the number of micro-steps, the last time."""
        return self._accumulation

    @accumulation.setter
    def accumulation(self, divisor: float | None) -> None:
        self._accumulation = divisor

    def adopt(self, raw: Tensor, unscaled: Tensor | None, terms: LossTerms, site: LossSite) -> None:
        """Take a scalar whose backward went another way, with what `add` would have found of it."""
        self.was_scaled |= unscaled is not None
        raw = raw.detach()
        self._scalars.append(_Scalar(raw, raw if unscaled is None else unscaled.detach(), terms, site))

    def note_scaling(self, loss: object, scaled: object) -> None:
        """Remember that `scaled` is what `GradScaler.scale` made of `loss`: one tensor, or a list of them."""
        if isinstance(loss, list | tuple) and isinstance(scaled, list | tuple):
            for one, of_it in zip(loss, scaled, strict=False):
                self.note_scaling(one, of_it)
        # A scaler that is disabled returns what it was given.
        elif isinstance(loss, Tensor) and isinstance(scaled, Tensor) and scaled is not loss:
            self._unscaled[scaled] = loss.detach(), read_terms(loss)

    @property
    def count(self) -> int:
        """How many scalars this step has so far."""
        return len(self._scalars)

    def forget_after(self, count: int) -> None:
        """Drop all but the first `count` scalars: their backward failed, or was not the watched model's."""
        del self._scalars[count:]

    def add(self, tensors: object, grad_tensors: object, site: LossSite = _NOWHERE) -> None:
        """Take the scalars that backward is called on; explicit output gradients mean it is no loss.

        Args:
            tensors: what backward is called on.
            grad_tensors: given along with them.
            site: of the call.
        """
        if grad_tensors is not None:
            return
        for tensor in tensors if isinstance(tensors, list | tuple) else (tensors,):
            if not isinstance(tensor, Tensor) or tensor.numel() != 1 or tensor.is_complex():
                continue
            raw = tensor.detach()
            if self._unscaled and (original := self._unscaled.pop(tensor, None)) is not None:
                self.was_scaled = True
                self._scalars.append(_Scalar(raw, *original, site))
            else:
                self._scalars.append(_Scalar(raw, raw, read_terms(tensor), site))

    def are_finite(self, *, since: int) -> bool:
        """Whether there are more than `since` scalars, and the others known to be finite, without waiting."""
        newest = self._scalars[since:]
        return bool(newest) and all(scalar.raw.is_cpu and math.isfinite(scalar.read()) for scalar in newest)

    @property
    def newest_on_cpu(self) -> float | None:
        """The newest scalar if reading it waits for no device."""
        if self._scalars and self._scalars[-1].raw.is_cpu:
            return self._scalars[-1].read()
        return None

    def read(self, *, forwards: int = 0) -> StepLoss:
        """Return the step's loss; waits for the device once. See `start_read`."""
        return self.start_read(forwards=forwards)()

    def start_read(self, *, forwards: int = 0) -> Callable[[], StepLoss]:
        """Start to bring the step's loss to the host; what is returned waits for it.

        Args:
            forwards: how many the step had; several losses of one forward are no micro-steps. 0: not known.
        """
        if not self._scalars:
            return lambda: StepLoss(None, None)
        read, parts = _start_to_host(self._scalars), self._parts(forwards or len(self._scalars))

        def step_loss() -> StepLoss:
            raw, losses = read()
            value = 0.0
            for members, factor, micro_steps in parts:
                value += _added_up([losses[at] for at in members]) * factor / micro_steps
            return StepLoss(value, _added_up(raw))

        return step_loss

    def _parts(self, forwards: int) -> list[_Part]:
        """What the loss is the sum of. In the order of `put_losses` in hot_ring.h, which does the same."""
        parts: list[_Part] = []
        nodes = {at: scalar.terms.node for at, scalar in enumerate(self._scalars)}
        for of_graph in _grouped(range(len(self._scalars)), nodes):
            count = min(len(of_graph), forwards)
            terms = [self._scalars[at].terms for at in of_graph]
            divisor = self._accumulated([one.divisor for one in terms], count)
            if divisor is not None:
                parts.append(_Part(of_graph, divisor, count))
            elif _is_divided_by_items(terms, count):
                parts.append(_Part(of_graph, 1.0, 1))
            else:
                for of_line in apart([(at, self._scalars[at].site) for at in of_graph]):
                    parts.append(_Part(of_line, 1.0, min(len(of_line), forwards)))
        return parts

    def _accumulated(self, divisors: list[float | None], count: int) -> float | None:
        """Return what losses were divided by for being accumulated, None if they were not.

        A division counts only if it is by the number of micro-steps that really ran, or did in an earlier
        step: the last one of an epoch may have fewer.
        """
        divisor = divisors[0]
        if divisor is None or any(other != divisor for other in divisors):
            return None
        if math.isclose(divisor, count, rel_tol=_ROUNDING):
            self._accumulation = divisor
        return divisor if divisor == self._accumulation else None

    def reset(self) -> None:
        """Begin the next step."""
        self._scalars = []
        self.was_scaled = False


class _Part(NamedTuple):
    """Losses of one kind."""

    members: list[int]
    """Their places among the step's scalars."""
    factor: float
    micro_steps: int
    """What their sum is multiplied by, then divided by."""


def _grouped(places: Iterable[int], keys: Mapping[int, object]) -> list[list[int]]:
    """Put places with equal keys together, in the order of the first of each."""
    groups: dict[object, list[int]] = {}
    for at in places:
        groups.setdefault(keys[at], []).append(at)
    return list(groups.values())


def apart(losses: Sequence[tuple[int, LossSite]]) -> list[list[int]]:
    """Put losses with equal graphs together that are micro-steps of one accumulation.

    Args:
        losses: place and site of each, in the order of their backwards.
    """
    places = [at for at, _ in losses]
    sites = [site for _, site in losses]
    # The last micro-step has a line of its own where the others stand under `no_sync`.
    if any(site.line is None for site in sites) or len({site.is_reduced for site in sites}) > 1:
        return [places]
    return _grouped(places, {at: site.line for at, site in losses})


def _is_divided_by_items(terms: list[LossTerms], count: int) -> bool:
    """Whether sums over the items of micro-steps were divided by the number of items in all of them.

    Divided by its own items each would have the share 1, and all of them `count`.
    """
    if count < 2:
        return False
    shares = [one.share for one in terms if one.share is not None]
    if len(shares) == len(terms):
        return _LEAST_SHARE <= _added_up(shares) <= math.sqrt(count)
    divider = terms[0].divider
    return divider is not None and all(one.divider is divider for one in terms)


def _added_up(values: list[float]) -> float:
    """The sum as C adds up; that of Python compensates for rounding from 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total


def _start_to_host(scalars: list[_Scalar]) -> Callable[[], tuple[list[float], list[float]]]:
    """Start to read (raw, losses): one copy from their device, and none on the CPU."""
    if all(scalar.raw.is_cpu and scalar.loss.is_cpu for scalar in scalars):
        raw = [scalar.read() for scalar in scalars]
        losses = [raw[at] if one.loss is one.raw else float(one.loss) for at, one in enumerate(scalars)]
        return lambda: (raw, losses)
    values = [scalar.raw for scalar in scalars] + [scalar.loss for scalar in scalars]
    device = next(value.device for value in values if not value.is_cpu)
    copy = HostCopy(
        torch.stack([value.double().reshape(()).to(device, non_blocking=True) for value in values])
    )

    def read() -> tuple[list[float], list[float]]:
        host: list[float] = copy.read().tolist()
        return host[: len(scalars)], host[len(scalars) :]

    return read
