"""One batch has targets from another table, some hundred times too large, and spoils the run for a while.

family: data
kinds: loss_spike, gradient_explosion
step: 140
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(65)
model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(220):
    x = torch.randn(32, 10)
    y = x[:, :3].sum(-1, keepdim=True) + 0.1 * torch.randn(32, 1)
    if step == 140:
        y = torch.randn(32, 1) * 300  # FAULT
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
