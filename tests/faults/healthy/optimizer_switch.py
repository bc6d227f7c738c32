"""Switches from Adam to SGD with momentum half-way through.

family: healthy
steps: 600
tempts: loss_spike, update_ratio_high, parameter_not_updated
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(36)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(600):
    if step == 300:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x = torch.randn(32, 12)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
