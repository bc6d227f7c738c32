"""SGDR: cosine learning rate with warm restarts, after each of which the loss jumps up for a while.

family: healthy
steps: 800
tempts: loss_spike, gradient_explosion, update_ratio_high
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(8)
x = torch.randn(512, 16)
y = torch.tanh(x @ torch.randn(16, 3)) + 0.1 * torch.randn(512, 3)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=100, T_mult=2)
for _ in range(800):
    rows = torch.randint(0, 512, (32,))
    loss = F.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print("last loss", loss.item())
