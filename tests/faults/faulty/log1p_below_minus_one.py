"""Compresses returns with log1p inside the model; one share lost more than everything (a data error).

family: forward
kinds: nonfinite_loss
step: 105
module: compress
"""

import torch
from torch import nn
from torch.nn import functional as F


class LogReturns(nn.Module):
    def forward(self, x):
        return torch.log1p(x)  # FAULT


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.compress = LogReturns()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 1))

    def forward(self, returns):
        return self.body(self.compress(returns)).squeeze(-1)


torch.manual_seed(14)
model = Ranker()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
history = 0.02 * torch.randn(150 * 32, 12)
history[105 * 32 + 9, 4] = -1.4
future = history.mean(1) * 10
for x, y in zip(history.split(32), future.split(32), strict=True):
    loss = F.smooth_l1_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
