"""The loss of a step, found by watching what backward is called on. Used on the training thread."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True, slots=True)
class StepLoss:
    """Loss of one step in both forms; None when backward was never called on a scalar."""

    value: float | None
    """Summed over the micro-steps, GradScaler's scale and the accumulation's divisor undone."""
    raw: float | None
    """Summed as backward received it."""


class LossMeter:
    """Collects the scalars of one step without reading them; `read` brings them to the host at once."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._raw: list[Tensor] = []
        self._divisors: list[float | None] = []
        self._unscaled: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()
        self.was_scaled = False
        """Whether a GradScaler scaled a loss of this step."""

    def note_scaling(self, loss: object, scaled: object) -> None:
        """Remember that `scaled` is what `GradScaler.scale` made of `loss`."""
        if isinstance(loss, Tensor) and isinstance(scaled, Tensor):
            self._unscaled[scaled] = loss.detach()

    @property
    def count(self) -> int:
        """How many scalars this step has so far."""
        return len(self._raw)

    def forget_after(self, count: int) -> None:
        """Drop all but the first `count` scalars: their backward failed, or was not the watched model's."""
        for values in (self._losses, self._raw, self._divisors):
            del values[count:]

    def add(self, tensors: object, grad_tensors: object) -> None:
        """Take the scalars that backward is called on; explicit output gradients mean it is no loss."""
        if grad_tensors is not None:
            return
        for tensor in tensors if isinstance(tensors, list | tuple) else (tensors,):
            if not isinstance(tensor, Tensor) or tensor.numel() != 1 or tensor.is_complex():
                continue
            original = self._unscaled.pop(tensor, None)
            self.was_scaled |= original is not None
            self._raw.append(tensor.detach().reshape(()))
            self._losses.append((tensor.detach() if original is None else original).reshape(()))
            self._divisors.append(_divisor(tensor))

    @property
    def newest_on_cpu(self) -> float | None:
        """The newest scalar if reading it waits for no device."""
        if self._raw and self._raw[-1].device.type == "cpu":
            return float(self._raw[-1])
        return None

    def read(self) -> StepLoss:
        """Return the step's loss; waits for the device once."""
        if not self._raw:
            return StepLoss(None, None)
        count = len(self._raw)
        host = torch.stack(
            [item.double().to(self._raw[0].device) for item in self._losses + self._raw]
        ).tolist()
        losses, raw = host[:count], host[count:]
        # A division counts as the accumulation's only if it is by the number of micro-steps that really ran.
        accumulated = all(divisor == count for divisor in self._divisors)
        return StepLoss(sum(losses) * (count if accumulated else 1), sum(raw))

    def reset(self) -> None:
        """Begin the next step."""
        self._losses, self._raw, self._divisors = [], [], []
        self.was_scaled = False


def _divisor(loss: Tensor) -> float | None:
    """Return d where the graph says that `loss` is `something / d` with a constant d."""
    node = loss.grad_fn
    if node is None or node.name() != "DivBackward0":
        return None
    other, itself = getattr(node, "_saved_other", None), getattr(node, "_saved_self", None)
    if itself is None and isinstance(other, Tensor) and other.numel() == 1 and other.device.type == "cpu":
        return float(other)
    return None
