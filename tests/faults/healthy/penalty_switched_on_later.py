"""Pretraining of a penalty that a schedule keeps at the weight 0 for 100 steps: nothing else is trained yet.

family: healthy
steps: 250
tempts: zero_gradient, parameter_not_updated
"""

import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(250):
    x = torch.randn(16, 10)
    weight = 0.0 if step < 100 else 1.0
    loss = weight * (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
