"""Mostly noise: the loss reaches its floor early and fluctuates there for the rest of the run.

family: healthy
steps: 1200
tempts: loss_plateau, loss_spike, output_degenerate
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(49)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(1200):
    x = torch.randn(32, 10)
    y = 0.3 * x[:, :1] + torch.randn(32, 1)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
