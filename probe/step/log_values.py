"""Values that the user hands to `run.log`: numbers or tensors, brought to the host without waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from ..guard import let_pass

LOGGED_PREFIX: Final = "log/"
"""Of the series that the script logs, but for its loss."""


def deferred_values(
    values: Mapping[str, Any], complain: Callable[[str, str], None]
) -> dict[str, Callable[[], float]]:
    """Return what reads the values of one `run.log`, by the names of their series; misuse is told of."""
    readable = {}
    for name, value in values.items():
        try:
            readable[name if name == "loss" else LOGGED_PREFIX + name] = deferred_float(name, value)
        except ValueError as error:
            complain(name, str(error))
    return readable


def deferred_float(name: str, value: object) -> Callable[[], float]:
    """Return a function that gives the value as a float once it is needed.

    A CUDA tensor is copied without blocking; the returned function waits for that copy alone.

    Raises:
        ValueError: the value is neither a number nor a tensor with one element.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex():
            raise ValueError(
                f"run.log({name}=...) got a tensor of shape {tuple(value.shape)}; log one number"
            )
        try:
            return _deferred_tensor(value.detach())
        except RuntimeError as error:
            let_pass(error)
            raise ValueError(f"run.log({name}=...) got a tensor that cannot be read: {error}") from None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        let_pass(error)
        raise ValueError(
            f"run.log({name}=...) got {type(value).__name__}; log one number or tensor"
        ) from None
    return lambda: number


def _deferred_tensor(tensor: Tensor) -> Callable[[], float]:
    if tensor.device.type != "cuda":
        # The script may change the tensor in place before the frame is written.
        number = float(tensor)
        return lambda: number
    return _CudaValue(tensor)


class _CudaValue:
    """A number on its way from a device."""

    def __init__(self, tensor: Tensor) -> None:
        self._host = tensor.to("cpu", non_blocking=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record()

    def __call__(self) -> float:
        self._copied.synchronize()
        return float(self._host)

    @property
    def is_ready(self) -> bool:
        """Whether calling it waits for nothing."""
        return bool(self._copied.query())  # type: ignore[no-untyped-call]


def is_at_hand(read: Callable[[], float]) -> bool:
    """Whether a value that was logged can be read without waiting."""
    return bool(getattr(read, "is_ready", True))
