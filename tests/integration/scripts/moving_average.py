"""A model beside a wrapper that holds it and its moving average; prints its losses."""

import copy

import torch
from torch import Tensor, nn


class EMA(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.online_model = model
        self.ema_model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        for average, value in zip(self.ema_model.parameters(), self.online_model.parameters(), strict=True):
            average.lerp_(value, 0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.ema_model(inputs)


torch.manual_seed(0)
denoiser = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(denoiser.parameters(), lr=0.1)
average = EMA(denoiser)
for _ in range(4):
    batch = torch.randn(3, 4)
    optimizer.zero_grad()
    loss = (denoiser(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    average.update()
    print(repr(loss.item()))
