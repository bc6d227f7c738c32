"""Trains on after magnitude pruning with a mask: 80 % of the weights are 0 and stay it.

family: healthy
steps: 500
tempts: parameter_not_updated, dead_units, loss_spike
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

torch.manual_seed(45)
model = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(500):
    if step == 200:
        prune.l1_unstructured(model[0], "weight", amount=0.8)
        prune.l1_unstructured(model[2], "weight", amount=0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
