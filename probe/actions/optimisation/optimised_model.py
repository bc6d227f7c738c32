"""`optimize_model`: a model called in one of the modes; also as a decorator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import nn

from ...compat.torch_compiler import compiled
from ...compat.torch_modules import COMPILED
from .applied import note_applied
from .checkpointing import Checkpoints
from .modes import (
    WITH_AMP,
    WITH_CHECKPOINTS,
    WITH_COMPILATION,
    OptimizationMode,
    amp_dtype,
    check_mode,
    device_of,
)

F = TypeVar("F", bound=Callable[..., Any])


class OptimizedModel(nn.Module):
    """A model that is called in a mode; parameters, buffers and `state_dict` are the model's own.

    Its names are those of a model under `torch.compile`. What it lacks is looked up on the model.

    Attributes:
        mode: of the modes.
        dtype: that autocast computes in; None without mixed precision.
        checkpointed: names of the blocks that the backward computes again.
    """

    def __init__(
        self,
        model: nn.Module,
        mode: OptimizationMode,
        *,
        dtype: torch.dtype | None = None,
        checkpoint: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.training = model.training
        self._orig_mod = model
        self.mode = mode
        self._device_type = device_of(model).type
        self.dtype = amp_dtype(device_of(model), dtype) if mode in WITH_AMP else None
        compiles = mode in WITH_COMPILATION
        self._checkpoints = (
            Checkpoints(model, checkpoint, keep_buffers=not compiles) if mode in WITH_CHECKPOINTS else None
        )
        # Not a child: `named_modules` would have the model twice.
        self.__dict__["_call"] = compiled(model) if compiles else model

    @property
    def checkpointed(self) -> tuple[str, ...]:
        """Names of the blocks that the backward computes again."""
        return () if self._checkpoints is None else self._checkpoints.names

    @property
    def needs_scaler(self) -> bool:
        """Whether gradients can become 0 without a `torch.amp.GradScaler`: they are float16."""
        return self.dtype is torch.float16

    @property
    def wrapped(self) -> nn.Module:
        """The model itself."""
        return self._orig_mod

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision that forward and loss are computed in."""
        return nullcontext() if self.dtype is None else torch.autocast(self._device_type, dtype=self.dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model in the mode."""
        with self.autocast(), nullcontext() if self._checkpoints is None else self._checkpoints.applied():
            return self._call(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the model, with its names."""
        return self._orig_mod.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load it into the model."""
        return self._orig_mod.load_state_dict(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == COMPILED:
                raise
            return getattr(self._orig_mod, name)


def optimize_model(
    model: nn.Module | Callable[..., Any] | None = None,
    mode: OptimizationMode = "full",
    *,
    dtype: torch.dtype | None = None,
    checkpoint: Sequence[str] | None = None,
) -> Any:
    """Return a model that is called in a mode: `optimize_model(model, "amp")`. The model stays as it is.

    Both have the same parameters, so an optimizer that was made before goes on with them. As a decorator,
    `@optimize_model(mode="amp")`: a model that the function returns is returned so, and models among its
    arguments are handed to it so.

    - `none` does nothing.
    - `amp`: forward under `torch.autocast`, in bfloat16, or in float16 where the GPU has no bfloat16. That
      one needs a `torch.amp.GradScaler` (`needs_scaler`), which `optimize_training_loop` brings.
    - `compilation`: `torch.compile`; needs a C++ compiler, and the first call takes up to minutes.
    - `memory_efficient`: the backward computes blocks again instead of keeping their activations.
    - `full`: the three together; blocks with buffers are not checkpointed.

    Args:
        model: the model; None, or the function to decorate, makes a decorator.
        mode: what to do.
        dtype: of autocast, `torch.float16` or `torch.bfloat16`; None chooses.
        checkpoint: qualified names of the modules to checkpoint; None takes the layers in a `ModuleList` or
            `Sequential`.

    Raises:
        ValueError: no such mode, no module, or nothing to checkpoint.
        RuntimeError: `compilation` or `full`, and there is no C++ compiler.
    """
    known = check_mode(mode)

    def apply(one: nn.Module) -> OptimizedModel:
        if isinstance(one, OptimizedModel):
            raise ValueError(f"the model is optimised already, in mode {one.mode}: pass the model itself")
        made = OptimizedModel(one, known, dtype=dtype, checkpoint=checkpoint)
        note_applied(known)
        return made

    if isinstance(model, nn.Module):
        return apply(model)
    if model is None:
        return functools.partial(_decorate, apply)
    if callable(model) and not isinstance(model, type):
        return _decorate(apply, model)
    raise ValueError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def _decorate(apply: Callable[[nn.Module], OptimizedModel], function: F) -> F:
    if not callable(function):
        raise ValueError(f"optimize_model decorates a function, got {type(function).__name__}")

    def optimised(value: Any) -> Any:
        is_plain = isinstance(value, nn.Module) and not isinstance(value, OptimizedModel)
        return apply(value) if is_plain else value

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = {name: _if_model(value, optimised, function) for name, value in kwargs.items()}
        return optimised(function(*[_if_model(value, optimised, function) for value in args], **given))

    return wrapper  # type: ignore[return-value]


def _if_model(value: Any, optimised: Callable[[Any], Any], function: Callable[..., Any]) -> Any:
    """A loss function is a module too, and no model: it has no parameters. So is the owner of a method."""
    is_owner = isinstance(value, nn.Module) and hasattr(type(value), getattr(function, "__name__", ""))
    has_parameters = isinstance(value, nn.Module) and any(True for _ in value.parameters())
    return optimised(value) if has_parameters and not is_owner else value
