"""The small classifier that trainers are given, its data, and a layer that makes a NaN in it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Root(nn.Module):
    """Takes the root of something negative in its fourth training call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return torch.sqrt(inputs - 9) if self.calls == 4 else inputs


def make_net(*, poisoned: bool = False) -> nn.Sequential:
    """The same weights every time; poisoned, its module "2" is a `Root`."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return net.insert(2, Root()) if poisoned else net


def make_data(samples: int = 32) -> TensorDataset:
    """(6,) inputs and classes, the same ones every time."""
    inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, torch.arange(samples) % 3)


def make_loader(samples: int = 32, batch_size: int = 4) -> DataLoader[Any]:
    """Eight batches of four, if not told otherwise."""
    return DataLoader(make_data(samples), batch_size=batch_size)
