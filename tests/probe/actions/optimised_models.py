"""Models and steps for the tests of optimisation modes, and the same done by hand with plain torch."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Notes its forwards' precision; dropout draws random numbers, the batch norm writes buffers."""

    def __init__(self, *, dropout: float, norm: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm: nn.Module = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        product = self.linear(x)
        # A compiler would compile anew for each length of the list.
        if not torch.compiler.is_compiling():
            self.dtypes.append(product.dtype)
        return x + self.dropout(torch.relu(self.norm(product)))


class Net(nn.Module):
    def __init__(self, *, dropout: float = 0.0, norm: bool = False, blocks: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(dropout=dropout, norm=norm) for _ in range(blocks)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.head(x)
        return result


def net(*, dropout: float = 0.0, norm: bool = False, blocks: int = 3) -> Net:
    torch.manual_seed(0)
    return Net(dropout=dropout, norm=norm, blocks=blocks)


def batch(rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 8, generator=generator), torch.randint(3, (rows,), generator=generator)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plain_gradients(model: nn.Module, seed: int = 7) -> dict[str, Tensor]:
    """Of one backward of a copy, with plain torch."""
    model = copy.deepcopy(model)
    inputs, targets = batch()
    torch.manual_seed(seed)
    F.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return gradients_of(model)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All of a model, an optimizer and the generators that must not change."""
    return {
        "state": {name: one.clone() for name, one in model.state_dict().items()},
        "grad": gradients_of(model),
        "training": [module.training for module in model.modules()],
        "hooks": [(list(module._forward_hooks), list(module._backward_hooks)) for module in model.modules()],
        "attributes": [sorted(module.__dict__) for module in model.modules()],
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
    }


def is_same(one: Any, other: Any) -> bool:
    """Bit by bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
