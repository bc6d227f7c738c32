"""Keeps every batch and recomputes statistics over all of them at each step: steps get slower and slower.

family: process
kinds: performance_degradation, memory_leak
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(91)
history = []
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(350):
    x = torch.randn(256, 64)
    history.append(x)
    mean = torch.cat(history).mean(0)  # FAULT
    loss = F.cross_entropy(model(x - mean), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
