"""A deep linear net leaves a saddle: the loss stands still for a long time, then falls quickly.

family: healthy
steps: 1000
tempts: loss_plateau, gradient_explosion, gradient_vanishing, poor_initialization
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(57)
truth = torch.randn(8, 8)
model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
for layer in model:
    nn.init.normal_(layer.weight, std=0.12)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(1000):
    x = torch.randn(64, 8)
    loss = F.mse_loss(model(x), x @ truth)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
print("last loss", loss.item())
