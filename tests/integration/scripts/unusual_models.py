"""Trains models whose modules are not plain, each with an optimizer that is made before its first call."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")


class Raising(nn.Module):
    """Whoever asks for what it has not gets an error of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 3)

    def __getattr__(self, name: str) -> nn.Module:
        if name not in self.__dict__["_modules"]:
            raise RuntimeError(f"not connected: {name}")
        return self.__dict__["_modules"][name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(12):
        x = torch.randn(6, 8)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(repr(loss.item()))


torch.manual_seed(0)
scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
lazy = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
raising = Raising()
for model in (scripted, lazy, raising):
    train(model)
