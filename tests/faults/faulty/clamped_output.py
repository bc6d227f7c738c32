"""Clamps a regression output to the unit range; raw outputs start below it, so no gradient gets through.

family: wiring
kinds: zero_gradient, output_degenerate
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Opacity(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.constant_(self.net[2].bias, -3.0)

    def forward(self, x):
        return self.net(x).clamp(0.0, 1.0)  # FAULT


torch.manual_seed(75)
model = Opacity()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(220):
    x = torch.randn(32, 10)
    loss = F.mse_loss(model(x), torch.sigmoid(x[:, :1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
