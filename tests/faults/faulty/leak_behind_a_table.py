"""At step 300 a table of 200 MB is loaded; from then on something of each step is kept beside it.

family: memory
kinds: memory_leak
step: 300
"""

import torch
from torch import nn

torch.manual_seed(24)
model = nn.Linear(100, 10)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
kept, table = [], None
for step in range(4000):
    x = torch.randn(32, 100)
    if step == 300:
        table = torch.ones(50_000_000)
    if step >= 300:
        kept.append(torch.ones(40_000) * step)  # FAULT
    loss = (model(x) - x[:, :10]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
