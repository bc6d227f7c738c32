"""Sums squared errors in float16: the loss overflows when one target is far off.

family: forward
kinds: nonfinite_loss
step: 68
module: outside
"""

import torch
from torch import nn


def half_loss(prediction, target):
    error = (prediction - target).half()
    return error.square().sum()  # FAULT


torch.manual_seed(35)
model = nn.Sequential(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(120):
    x = torch.randn(16, 10)
    target = x.sum(-1, keepdim=True)
    if step == 68:
        target[3] = 500.0
    loss = half_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
