"""One training step in a mode: forward, loss, backward and update; in parts of a batch if it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from ..analysis.recorded_calls import split_input
from ..recovery.tensor_conditions import map_tensors
from .modes import WITH_CHECKPOINTS, device_of
from .optimised_model import OptimizedModel

Criterion = Callable[[Any, Any], Tensor]


class OptimizedStep:
    """Steps of one model; training thread.

    Args:
        model: in its mode.
        criterion: gives the loss of an output and its target; None takes the output's own `loss`.
        optimizer: makes the update; None makes none.
        accumulation: parts of a batch in the modes that split it.

    Attributes:
        outputs: of the newest step's parts.
        scaler: of float16 gradients; None where none is needed.
    """

    def __init__(
        self,
        model: OptimizedModel,
        criterion: Criterion | None,
        optimizer: Optimizer | None,
        *,
        accumulation: int,
    ) -> None:
        self._model, self._criterion, self._optimizer = model, criterion, optimizer
        self.accumulation = accumulation if model.mode in WITH_CHECKPOINTS else 1
        # A loss that is a sum over rows is one over parts too.
        self._is_sum = getattr(criterion, "reduction", "mean") == "sum"
        self.outputs: list[Any] = []
        self.scaler = torch.amp.GradScaler(device_of(model).type) if model.needs_scaler else None

    def run(self, inputs: Any, targets: Any) -> Tensor:
        """Make one step; return its loss, detached: the mean over the rows of the batch."""
        loss = self.backward(inputs, targets)
        self.update()
        return loss

    def backward(self, inputs: Any, targets: Any) -> Tensor:
        """Clear the gradients and compute them anew; they are scaled by `scaler`, where there is one."""
        self.clear()
        self.outputs, losses = [], []
        for part, target, share in self._parts(inputs, targets):
            loss = self._loss(part, target)
            if share != 1.0:
                loss = loss * share
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            scaled.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def update(self) -> None:
        """Have the optimizer make its step."""
        if self._optimizer is None:
            return
        if self.scaler is None:
            self._optimizer.step()
        else:
            self.scaler.step(self._optimizer)
            self.scaler.update()

    def clear(self) -> None:
        """Take the gradients away."""
        owner = self._model if self._optimizer is None else self._optimizer
        owner.zero_grad(set_to_none=True)

    def _loss(self, inputs: Any, target: Any) -> Tensor:
        args, kwargs = split_input(inputs)
        output = self._model(*args, **kwargs)
        self.outputs.append(map_tensors(output, "output", lambda _, tensor: tensor.detach()))
        with self._model.autocast() if self._criterion is not None else nullcontext():
            loss = _own_loss(output) if self._criterion is None else self._criterion(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError("the criterion has to give one number")
        return loss

    def _parts(self, inputs: Any, targets: Any) -> Iterator[tuple[Any, Any, float]]:
        """Parts of a batch, with the share of its rows that each has."""
        if self.accumulation == 1:
            yield inputs, targets, 1.0
            return
        count = rows(inputs)
        size = -(-count // min(self.accumulation, count))
        for start in range(0, count, size):
            stop = min(start + size, count)
            share = 1.0 if self._is_sum else (stop - start) / count
            yield rows_between(inputs, start, stop), rows_between(targets, start, stop), share


def read_batch(batch: Any) -> tuple[Any, Any]:
    """Return inputs and targets: of a pair, or of a mapping that the model takes whole.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    if hasattr(batch, "keys"):
        return batch, None
    raise ValueError(
        f"a batch is (inputs, targets) or a dictionary that the model takes, got {type(batch).__name__}"
    )


def on_device(value: Any, model: nn.Module) -> Any:
    """Return the containers with their tensors on the model's device."""
    device = device_of(model)
    return map_tensors(value, "batch", lambda _, tensor: tensor.to(device, non_blocking=True), most=None)


def rows(value: Any) -> int:
    """Return the size of the first dimension, which all tensors have to have.

    Raises:
        ValueError: they have not, or there is none.
    """
    sizes: set[int] = set()

    def note(_: str, tensor: Tensor) -> Tensor:
        sizes.add(tensor.size(0) if tensor.dim() else 0)
        return tensor

    map_tensors(value, "batch", note, most=None)
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError("the batch cannot be split: its tensors need the same first dimension")
    return sizes.pop()


def rows_between(value: Any, start: int, stop: int) -> Any:
    """Return the containers with these rows of every tensor, as views."""
    return map_tensors(value, "batch", lambda _, tensor: tensor[start:stop], most=None)


def _own_loss(output: Any) -> Any:
    loss = output.get("loss") if hasattr(output, "get") else getattr(output, "loss", None)
    if loss is None:
        raise ValueError("without a criterion the model's output needs a `loss`")
    return loss
