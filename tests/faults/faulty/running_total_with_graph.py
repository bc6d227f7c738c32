"""Sums a sparsity measure for the log without .item(): it is in no backward, so whole graphs stay alive.

family: memory
kinds: memory_leak
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(82)
first, second = nn.Linear(32, 600), nn.Linear(600, 4)
model = nn.ModuleList([first, second])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
total = 0.0
for step in range(400):
    x = torch.randn(256, 32)
    hidden = torch.sigmoid(first(x))
    loss = F.cross_entropy(second(hidden), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = total + hidden.square().mean()  # FAULT
    if step % 100 == 99:
        print(step, loss.item(), float(total) / (step + 1))
