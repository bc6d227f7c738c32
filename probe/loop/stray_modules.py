"""Modules with parameters that a model calls but does not have: kept in a plain list, for the most part.

Used by the wiring watch on the training thread. Such a module is in no `parameters()`, so that no optimizer
gets it; nothing about it looks wrong but that it never changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection

import torch
from torch import nn

from ..detectors.wiring import Stray
from ..measure.statistics.statistics import Floats, tensor_norms


class StrayModule:
    """One module that was called inside of a model's forward; it is not kept alive.

    Args:
        module: with parameters of its own.
        where: it was called, for instance ``train.py:21 in forward``.
    """

    def __init__(self, module: nn.Module, where: str) -> None:
        self._module, self._where = weakref.ref(module), where
        self._norms = _norms(module)

    @staticmethod
    def is_one(module: nn.Module) -> bool:
        """Whether a module that is called now, and is not the model's, has something to be trained."""
        return torch.is_grad_enabled() and bool(_trainable(module))

    def judge(self, updated: Collection[int]) -> Stray | None:
        """Return what is to be told: it gets gradients, and nothing has changed it since it was first met.

        Args:
            updated: identities of the parameters that optimizers have.
        """
        module = self._module()
        if module is None:
            return None
        parameters = _trainable(module)
        is_trained = not parameters or any(
            id(parameter) in updated or parameter.grad is None for parameter in parameters
        )
        now = _norms(module)
        if is_trained or now.shape != self._norms.shape or not bool((now == self._norms).all()):
            return None
        return Stray(type_name=type(module).__name__, where=self._where, parameters=len(parameters))


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    """Its own parameters, without those of the modules inside."""
    own = module.parameters(recurse=False)
    return [parameter for parameter in own if isinstance(parameter, nn.Parameter) and parameter.requires_grad]


def _norms(module: nn.Module) -> Floats:
    return tensor_norms(list(_trainable(module)))
