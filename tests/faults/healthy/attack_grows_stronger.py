"""Adversarial training whose attack grows stronger step by step: the loss rises sevenfold and is meant to.

family: healthy
steps: 500
tempts: loss_divergence, loss_spike
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(66)
centres = 2.0 * torch.randn(5, 16)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(500):
    labels = torch.randint(0, 5, (64,))
    inputs = (centres[labels] + torch.randn(64, 16)).requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(inputs), labels), inputs)
    strength = 0.003 * max(step - 150, 0)
    attacked = (inputs + strength * slope.sign()).detach()
    loss = F.cross_entropy(model(attacked), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
