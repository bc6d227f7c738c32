"""Gradients are cleared between backward and step: the optimizer never sees any.

family: optimisation
kinds: parameter_not_updated, zero_gradient, loss_plateau
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(50)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(250):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(-1))
    loss.backward()
    optimizer.zero_grad()  # FAULT
    optimizer.step()
print("last loss", loss.item())
