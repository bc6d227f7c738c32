"""Features are kept in a memo by the number of the step, which never comes again.

family: memory
kinds: memory_leak
step: 0
"""

import torch
from torch import nn

memo = {}


def features(key):
    if key not in memo:
        memo[key] = [float(key % 97 + i) for i in range(8000)]  # FAULT
    return memo[key]


torch.manual_seed(25)
model = nn.Linear(100, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step in range(3000):
    x = torch.tensor(features(step)[:100]) / 100
    loss = (model(x + torch.randn(8, 100)) - x.mean()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
