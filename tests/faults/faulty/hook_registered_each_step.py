"""A hook that collects norms is registered in each step, and none is ever removed.

family: memory
kinds: memory_leak, performance_degradation
step: 0
"""

from functools import partial

import torch
from torch import nn


def collect(norms, module, args, output):
    norms.append(output.detach().norm())


torch.manual_seed(27)
model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(1500):
    x = torch.randn(32, 100)
    norms = []
    model[0].register_forward_hook(partial(collect, norms))  # FAULT
    loss = (model(x) - x[:, :10]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
