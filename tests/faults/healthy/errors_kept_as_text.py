"""One record in three cannot be parsed; the loop keeps what the exceptions say, and loads a table.

family: healthy
steps: 1600
tempts: memory_leak
"""

import torch
from torch import nn


def parse(step):
    raw = torch.randn(300, 400)
    if step % 3 == 0:
        raise ValueError(f"bad record {step}")
    return raw[:32, :100]


torch.manual_seed(28)
model = nn.Linear(100, 10)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
errors, newest, table = [], [], None
for step in range(2400):
    try:
        x = parse(step)
    except ValueError as error:
        errors.append(repr(error))
        newest = [*newest[-9:], error]
        continue
    if step == 601:
        table = torch.ones(25_000_000)
    loss = (model(x) - x[:, :10]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
