"""Regression on targets with heavy tails (Student t, 4 degrees): single batches have a large loss.

family: healthy
steps: 1500
tempts: loss_spike, gradient_explosion
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(22)
noise = torch.distributions.StudentT(4.0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(1500):
    x = torch.randn(32, 8)
    y = x[:, 0] * x[:, 1] + noise.sample((32,))
    loss = F.mse_loss(model(x).squeeze(-1), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
print("last loss", loss.item())
