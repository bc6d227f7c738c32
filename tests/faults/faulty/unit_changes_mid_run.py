"""A shard of the data set has lengths in millimetres instead of metres: inputs are 1000 times larger.

family: data
kinds: input_out_of_range, loss_spike, gradient_explosion
step: 130
"""

import torch
from torch import nn
from torch.nn import functional as F


def shard(index):
    lengths = torch.randn(32, 8)
    area = (lengths[:, :1] * lengths[:, 1:2]).tanh()
    if index >= 130:
        lengths = lengths * 1000  # FAULT
    return lengths, area


torch.manual_seed(64)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    x, y = shard(step)
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
