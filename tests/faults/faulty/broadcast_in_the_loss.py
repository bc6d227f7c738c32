"""Predictions (batch, 1) minus targets (batch,) broadcast to a square: the net learns the mean only.

family: wiring
kinds: loss_plateau, output_degenerate
step: 0
"""

import torch
from torch import nn

torch.manual_seed(76)
model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(700):
    x = torch.randn(64, 6)
    y = x[:, 0] + 0.5 * x[:, 1]
    loss = (model(x) - y).square().mean()  # FAULT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
