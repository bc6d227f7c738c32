"""The loss of a step, found by watching what backward is called on. Used on the training thread."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from typing import Any, Final, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ..compat.host_copy import HostCopy
from ..compat.torch_nodes import saved_operands

_ROUNDING: Final = 1e-6
"""1 / d may have been rounded to float32 before the loss was multiplied by it."""


class StepLoss(NamedTuple):
    """Loss of one step in both forms; None when backward was never called on a scalar."""

    value: float | None
    """Summed over the micro-steps, GradScaler's scale and the accumulation's divisor undone."""
    raw: float | None
    """Summed as backward received it."""


class _Scalar(msgspec.Struct):
    """What backward was called on once."""

    raw: Tensor
    loss: Tensor
    """The same tensor, or what a GradScaler made it of."""
    divisor: float | None
    value: float | None = None
    """Of `raw`, once it has been read."""

    def read(self) -> float:
        if self.value is None:
            self.value = float(self.raw)
        return self.value


class LossMeter:
    """Collects the scalars of one step without reading them; `read` brings them to the host at once."""

    def __init__(self) -> None:
        self._scalars: list[_Scalar] = []
        self._accumulation: float | None = None
        self._unscaled: MutableMapping[Tensor, tuple[Tensor, float | None]] = WeakTensorKeyDictionary()
        self.was_scaled = False
        """Whether a GradScaler scaled a loss of this step."""

    @property
    def accumulation(self) -> float | None:
        """What losses were divided by when that was the number of micro-steps, the last time."""
        return self._accumulation

    @accumulation.setter
    def accumulation(self, divisor: float | None) -> None:
        self._accumulation = divisor

    def adopt(self, raw: Tensor, unscaled: Tensor | None, divisor: float | None) -> None:
        """Take a scalar whose backward went another way, with what `add` would have found of it."""
        self.was_scaled |= unscaled is not None
        raw = raw.detach()
        self._scalars.append(_Scalar(raw, raw if unscaled is None else unscaled.detach(), divisor))

    def note_scaling(self, loss: object, scaled: object) -> None:
        """Remember that `scaled` is what `GradScaler.scale` made of `loss`: one tensor, or a list of them."""
        if isinstance(loss, list | tuple) and isinstance(scaled, list | tuple):
            for one, of_it in zip(loss, scaled, strict=False):
                self.note_scaling(one, of_it)
        # A scaler that is disabled returns what it was given.
        elif isinstance(loss, Tensor) and isinstance(scaled, Tensor) and scaled is not loss:
            self._unscaled[scaled] = loss.detach(), divisor_of(loss)

    @property
    def count(self) -> int:
        """How many scalars this step has so far."""
        return len(self._scalars)

    def forget_after(self, count: int) -> None:
        """Drop all but the first `count` scalars: their backward failed, or was not the watched model's."""
        del self._scalars[count:]

    def add(self, tensors: object, grad_tensors: object) -> None:
        """Take the scalars that backward is called on; explicit output gradients mean it is no loss."""
        if grad_tensors is not None:
            return
        for tensor in tensors if isinstance(tensors, list | tuple) else (tensors,):
            if not isinstance(tensor, Tensor) or tensor.numel() != 1 or tensor.is_complex():
                continue
            raw = tensor.detach()
            if self._unscaled and (original := self._unscaled.pop(tensor, None)) is not None:
                self.was_scaled = True
                self._scalars.append(_Scalar(raw, *original))
            else:
                self._scalars.append(_Scalar(raw, raw, divisor_of(tensor)))

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

    def read(self) -> StepLoss:
        """Return the step's loss; waits for the device once."""
        return self.start_read()()

    def start_read(self) -> Callable[[], StepLoss]:
        """Start to bring the step's loss to the host; what is returned waits for it."""
        if not self._scalars:
            return lambda: StepLoss(None, None)
        read, divisor = _start_to_host(self._scalars), self._accumulated()

        def step_loss() -> StepLoss:
            raw, losses = read()
            return StepLoss(_added_up(losses) * divisor, _added_up(raw))

        return step_loss

    def _accumulated(self) -> float:
        """Return what the losses were divided by for being accumulated, 1 if they were not.

        A division counts only if it is by the number of micro-steps that really ran, or did in an earlier
        step: the last one of an epoch may have fewer.
        """
        count, divisor = len(self._scalars), self._scalars[0].divisor
        if divisor is None or any(scalar.divisor != divisor for scalar in self._scalars[1:]):
            return 1.0
        if math.isclose(divisor, count, rel_tol=_ROUNDING):
            self._accumulation = divisor
        return divisor if divisor == self._accumulation else 1.0

    def reset(self) -> None:
        """Begin the next step."""
        self._scalars = []
        self.was_scaled = False


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


def divisor_of(loss: Tensor) -> float | None:
    """Return d where the graph says that `loss` is `something / d`, or times 1 / d, with a constant d."""
    return _divisor_of(loss.grad_fn)


def _divisor_of(node: Any) -> float | None:
    """Return the constant that an autograd node divides by; a division by 1 says nothing, so see below it."""
    name = "" if node is None else node.name()
    if name not in ("DivBackward0", "MulBackward0"):
        return None
    try:
        itself, other = saved_operands(node)
    except RuntimeError:
        # A backward has freed them: the one that is about to begin will fail, in its own words.
        return None
    if name == "DivBackward0" and itself is None:
        divisor = _constant(other)
        # What Accelerate does to a loss that the Hugging Face trainer has divided already.
        return _divisor_of(node.next_functions[0][0]) if divisor == 1.0 else divisor
    # Autograd keeps the factor of what needs a gradient, and only that.
    if (other is None) != (itself is None):
        factor = _constant(itself if other is None else other)
        return 1.0 / factor if factor and name == "MulBackward0" else None
    return None


def _constant(value: object) -> float | None:
    """Read a one-element tensor where that waits for no device."""
    if isinstance(value, Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return None if value.is_complex() else float(value)
    return None
