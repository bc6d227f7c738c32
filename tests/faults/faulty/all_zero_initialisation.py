"""Initialises every weight and bias with zeros; nothing but the last bias ever gets a gradient.

family: initialisation
kinds: poor_initialization, zero_gradient
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


def initialise(module):
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.weight)  # FAULT
        nn.init.zeros_(module.bias)


torch.manual_seed(54)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
model.apply(initialise)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(200):
    x = torch.randn(32, 12)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
