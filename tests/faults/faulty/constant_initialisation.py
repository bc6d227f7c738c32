"""Initialises all weights of a layer with one constant: its units stay copies of each other for ever.

family: initialisation
kinds: poor_initialization
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(55)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))
for layer in (model[0], model[2], model[4]):
    nn.init.constant_(layer.weight, 0.05)  # FAULT
    nn.init.constant_(layer.bias, 0.0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(250):
    x = torch.randn(32, 12)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
