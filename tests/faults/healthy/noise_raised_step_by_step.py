"""A denoiser whose noise is raised by 1 % a step, and the loss with it, until little is left to see.

family: healthy
steps: 600
tempts: loss_divergence, loss_spike
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(64)
model = nn.Sequential(nn.Linear(32, 96), nn.SiLU(), nn.Linear(96, 32))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
phases = torch.linspace(0, 6.2832, 32)
for step in range(600):
    clean = torch.sin(phases * torch.rand(64, 1) * 3 + torch.rand(64, 1) * 6.2832)
    noise = 0.03 * math.exp(max(step - 150, 0) / 100)
    loss = F.mse_loss(model(clean + noise * torch.randn(64, 32)), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
