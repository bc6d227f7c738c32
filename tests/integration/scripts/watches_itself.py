"""Uses the probe by itself; told to, trains into a NaN that the probe raises."""

import sys

import torch
from torch import nn

import probe
from probe.session import Probe

model = nn.Sequential(nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mode = "raise" if "raise" in sys.argv else "detect"
run = probe.watch(model, optimizer, run="my-own", mode=mode)
for _ in range(2):
    factor = float("nan") if mode == "raise" else 1.0
    (factor * model(torch.ones(3, 4)).sum()).backward()
    optimizer.step()
print(isinstance(run, Probe), run is probe.watch(model))
