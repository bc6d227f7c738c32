"""Features are kept in a memo by a word, of which there are 800: after a while every one of them is there.

family: healthy
steps: 2500
tempts: memory_leak
"""

import random

import torch
from torch import nn

memo = {}


def features(key):
    if key not in memo:
        memo[key] = [float(key % 97 + i) for i in range(8000)]
    return memo[key]


torch.manual_seed(30)
random.seed(30)
model = nn.Linear(100, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for _ in range(2500):
    x = torch.tensor(features(random.randrange(800))[:100]) / 100
    loss = (model(x + torch.randn(8, 100)) - x.mean()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
