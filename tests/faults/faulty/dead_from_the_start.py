"""A bias initialised to -10 in front of a ReLU: the whole layer is dead before training begins.

family: initialisation
kinds: dead_units, zero_gradient, poor_initialization
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(60)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
nn.init.constant_(model[2].bias, -10.0)  # FAULT
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(250):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
