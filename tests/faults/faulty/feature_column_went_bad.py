"""From step 80 on the data source delivers a column of NaN; a helper function returns before the backward.

family: data
kinds: nonfinite_loss
step: 80
origin: none
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(12)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def train_on(x, y):
    loss = F.mse_loss(model(x), y)
    if loss.isnan():
        return None
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for step in range(250):
    x = torch.randn(16, 12)
    y = x[:, :3] * 2
    if step >= 80:
        x[:, 4] = float("nan")  # FAULT
    train_on(x, y)
