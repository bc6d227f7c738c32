"""Copies of a model, its optimizer and its loss function, equal to each other; the originals stay alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from ...compat import torch_memory
from ...compat.torch_modules import DROPOUTS
from ...forensics.module_state import preserved
from ...guard import outcome_of
from ..analysis.gradient_checks import require_module
from ..analysis.inspection import fully_sharded
from .optimised_model import OptimizedModel


class Copy(NamedTuple):
    """Things to train that are nobody else's."""

    model: nn.Module
    optimizer: Optimizer | None
    criterion: Any


class CopySource:
    """Makes equal copies.

    Args:
        model: to be copied; or a function that makes one, called for each copy with the same random state.
        optimizer: to be copied with its state; or a function of the copy's parameters that makes one.
        criterion: copied where it is a module.

    Raises:
        ValueError: a made model with an optimizer of another one, a model under FSDP, or no model.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        optimizer: Optimizer | Callable[[Any], Optimizer] | None,
        criterion: Any,
    ) -> None:
        if isinstance(model, nn.Module):
            root = require_module(model)
            if (sharded := fully_sharded(root)) is not None:
                raise ValueError(
                    f"{sharded} is under FSDP, whose forward needs every rank: no copy can be run"
                )
            self.root: nn.Module | None = root
        elif callable(model):
            self.root = None
            if isinstance(optimizer, Optimizer):
                raise ValueError(
                    "a model that a function makes has no optimizer yet: pass a function of its parameters"
                )
        else:
            raise ValueError(f"model must be a torch.nn.Module or make one, got {type(model).__name__}")
        self._make, self._optimizer, self._criterion = model, optimizer, criterion

    def copy(self, *, without_dropout: bool = False) -> Copy:
        """Make a copy.

        Args:
            without_dropout: have its dropout modules drop nothing.

        Raises:
            ValueError: something cannot be copied.
        """
        made, error = outcome_of(self._copied)
        if made is None:
            raise ValueError(
                f"the model, optimizer or criterion cannot be copied ({error}): pass a function that makes it"
            ) from error
        if without_dropout:
            _silence(made.model)
        return made

    def _copied(self) -> Copy:
        optimizer = self._optimizer if isinstance(self._optimizer, Optimizer) else None
        criterion = self._criterion if isinstance(self._criterion, nn.Module) else None
        if self.root is None:
            with preserved([]):
                model = self._make()
            model = model.wrapped if isinstance(model, OptimizedModel) else model
            criterion = copy.deepcopy(criterion)
        else:
            # Together, so that the copied optimizer has the copied parameters.
            model, optimizer, criterion = copy.deepcopy((self.root, optimizer, criterion))
        if optimizer is None and self._optimizer is not None:
            optimizer = self._optimizer(model.parameters())  # type: ignore[operator]
        return Copy(model, optimizer, self._criterion if criterion is None else criterion)


def draws_random_numbers(call: Callable[[], object]) -> bool:
    """Call, and say whether it drew from torch's default generators."""
    before = _generator_states()
    call()
    return any(not torch.equal(one, other) for one, other in zip(before, _generator_states(), strict=True))


def _generator_states() -> list[torch.Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch_memory.cuda_is_initialised() else []
    return [torch.get_rng_state(), *cuda]


def _silence(model: nn.Module) -> None:
    """Have modules that torch brings drop nothing.

    Their flag alone is set: dynamo makes a variable of a probability that changes, and its code for
    checkpointed blocks has then been seen to drop with the one from before (torch 2.13).
    """
    for module in model.modules():
        if isinstance(module, (DROPOUTS, nn.MultiheadAttention, nn.RNNBase)):
            module.training = False
