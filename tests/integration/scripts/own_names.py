"""Has a `probe.py` and a `dashboard` package of its own beside it."""

import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()

import dashboard.page  # noqa: E402
import probe  # noqa: E402

print(probe.VALUE, dashboard.page.VALUE, probe.__name__)
