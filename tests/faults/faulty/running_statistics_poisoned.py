"""A batch with an infinite value is skipped, but BatchNorm has taken it into its running statistics.

family: data
kinds: nonfinite_parameter
step: 77
origin: none
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(44)
model = nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(200):
    x = torch.randn(64, 20)
    if step == 77:
        x[5, 3] = float("inf")
    loss = F.cross_entropy(model(x), x[:, :4].argmax(1))  # FAULT
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
