"""Trains, then asks the probe for more than a running session can do, and trains on."""

import torch
from torch import nn

import probe

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    if step == 4:
        run = probe.watch(model, optimizer, level="advanced", name="mine", overhead_limit=0.5)
    loss = model(torch.ones(3, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
