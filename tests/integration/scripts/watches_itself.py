"""Uses the probe by itself, for a part of what it trains."""

import torch
from torch import nn

import probe
from probe.session import Probe

model = nn.Sequential(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = probe.watch(model, optimizer, run="my-own")
for _ in range(2):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
print(isinstance(run, Probe), run is probe.watch(model))
