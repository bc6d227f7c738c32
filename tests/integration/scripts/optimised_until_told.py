"""Trains three steps, compares two modes on copies, and waits until its standard input ends."""

import sys

import torch
from torch import nn

import probe

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_fn = nn.CrossEntropyLoss()
inputs, targets = torch.randn(30, 16), torch.randint(3, (30,))
run = probe.watch(model, optimizer)
print(run.run, flush=True)
for _ in range(3):
    optimizer.zero_grad()
    loss_fn(model(inputs), targets).backward()
    optimizer.step()
probe.benchmark_optimizations(model, (inputs, targets), optimizer, loss_fn, modes=["amp", "memory_efficient"])
sys.stdin.read()
run.close()
