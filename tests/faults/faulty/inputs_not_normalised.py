"""Raw incomes and populations, in the 100,000s, go straight into the first layer.

family: data
kinds: input_out_of_range, poor_initialization, gradient_explosion, loss_divergence
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(63)
income = torch.rand(200 * 32, 6) * 900_000 + 20_000  # FAULT
price = (income[:, :2].mean(-1, keepdim=True) / 450_000 - 1) * 3
model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in zip(income.split(32), price.split(32), strict=True):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
