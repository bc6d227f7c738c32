"""Collects losses for a plot with losses.append(loss): the nodes of every graph stay alive.

family: memory
kinds: memory_leak
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(80)
model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for _ in range(1200):
    x = torch.randn(32, 64)
    loss = F.cross_entropy(model(x), x[:, :8].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)  # FAULT
print("mean loss", torch.stack(losses).mean().item())
