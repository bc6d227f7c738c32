"""Losses summed over pixels are large, and so are their gradients; Adam does not mind.

family: healthy
steps: 400
tempts: gradient_explosion, loss_divergence, poor_initialization
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(24)
basis = torch.rand(5, 400)
model = nn.Sequential(nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 5), nn.Linear(5, 400))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(400):
    x = torch.rand(64, 5) @ basis
    loss = F.mse_loss(model(x), x, reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
