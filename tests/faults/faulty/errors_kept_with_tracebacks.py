"""Records that cannot be parsed are collected as exceptions, each of which keeps the raw record alive.

family: memory
kinds: memory_leak
step: 0
"""

import torch
from torch import nn


def parse(step):
    raw = torch.randn(300, 400)
    if step % 3 == 0:
        raise ValueError(f"bad record {step}")
    return raw[:32, :100]


torch.manual_seed(26)
model = nn.Linear(100, 10)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
errors = []
for step in range(2400):
    try:
        x = parse(step)
    except ValueError as error:
        errors.append(error)  # FAULT
        continue
    loss = (model(x) - x[:, :10]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
