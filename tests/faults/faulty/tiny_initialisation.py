"""Weights with a standard deviation of 1e-4 in a deep net: activations and gradients vanish layer by layer.

family: initialisation
kinds: poor_initialization, gradient_vanishing
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(59)
model = nn.Sequential()
for depth in range(6):
    layer = nn.Linear(16 if depth == 0 else 64, 64)
    nn.init.normal_(layer.weight, std=1e-4)  # FAULT
    nn.init.zeros_(layer.bias)
    model.append(layer)
    model.append(nn.ReLU())
model.append(nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(250):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
