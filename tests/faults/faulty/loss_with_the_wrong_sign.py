"""Maximises the error: a minus sign from a reward was left in front of a mean squared error.

family: optimisation
kinds: loss_divergence, gradient_explosion, loss_spike, nonfinite_loss
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(49)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(300):
    x = torch.randn(32, 10)
    loss = -F.mse_loss(model(x), x.sum(-1, keepdim=True))  # FAULT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
