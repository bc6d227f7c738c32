"""Linear regression without noise goes on long after it has converged to rounding errors.

family: healthy
steps: 1500
tempts: gradient_vanishing, zero_gradient, loss_plateau, update_ratio_low
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(9)
x = torch.randn(256, 8)
y = x @ torch.randn(8, 2) + 0.5
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for _ in range(1500):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
