"""Standardises every window by its own standard deviation; one sensor was stuck for a whole window.

family: forward
kinds: nonfinite_loss
step: 90
module: scale
"""

import torch
from torch import nn
from torch.nn import functional as F


class WindowScale(nn.Module):
    def forward(self, x):
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / x.std(dim=-1, keepdim=True)  # FAULT


class Forecaster(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.scale = WindowScale()
        self.net = nn.Sequential(nn.Linear(window, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(self.scale(x)).squeeze(-1)


def read_windows(count, window):
    phase = torch.rand(count, 1) * 6.28
    time = torch.linspace(0, 6.28, window + 1)
    waves = torch.sin(time + phase) + 0.1 * torch.randn(count, window + 1)
    waves[90 * 16 + 7] = 0.5
    return waves[:, :-1], waves[:, -1]


torch.manual_seed(2)
inputs, targets = read_windows(150 * 16, 24)
model = Forecaster(24)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for x, y in zip(inputs.split(16), targets.split(16), strict=True):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("last loss", loss.item())
