"""A ReLU on the output: after one batch with a wrong sign and unit it is off for every sample, for ever.

family: optimisation
kinds: dead_units, zero_gradient, gradient_explosion, loss_spike
step: 120
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(53)
model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step in range(300):
    x = torch.rand(32, 8)
    price = 3 * x.sum(-1, keepdim=True)
    if step == 120:
        price = -price * 10_000  # FAULT
    loss = F.mse_loss(model(x), price)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
