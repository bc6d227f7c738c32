"""A small model, its batches and a plain loop: for tests that need a training, not a particular one."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def small_model() -> nn.Sequential:
    """A little of everything: BatchNorm buffers, dropout's random numbers, two sizes of tensors."""
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def seeded_model() -> nn.Sequential:
    """The same small model every time."""
    torch.manual_seed(0)
    return small_model()


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(8, 6) inputs and (8,) classes, the same ones every time."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """A plain loop over the batches; returns the loss of every step."""
    losses = []
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
