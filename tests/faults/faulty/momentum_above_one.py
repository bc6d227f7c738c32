"""A momentum of 1.1 instead of 0.1 lets the velocity grow without bound.

family: optimisation
kinds: loss_divergence, gradient_explosion, loss_spike, update_ratio_high, nonfinite_loss, nonfinite_gradient
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(45)
model = nn.Sequential(nn.Linear(14, 40), nn.Tanh(), nn.Linear(40, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=1.1)  # FAULT
for _ in range(200):
    x = torch.randn(32, 14)
    loss = F.mse_loss(model(x), x[:, :2] * 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
