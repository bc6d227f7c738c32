"""Targets in the 1e-5s: losses of 1e-10 and gradients of 1e-7 are small, not vanishing.

family: healthy
steps: 600
tempts: gradient_vanishing, poor_initialization, update_ratio_low
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(30)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
nn.init.zeros_(model[2].weight)
nn.init.zeros_(model[2].bias)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, eps=1e-12)
for _ in range(600):
    x = torch.randn(32, 8)
    loss = F.mse_loss(model(x), 1e-5 * x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
