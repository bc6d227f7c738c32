"""Angle between vectors as acos of a cosine clamped to [-1, 1]: at exactly 1 the slope is infinite.

family: backward
kinds: nonfinite_gradient
step: 63
module: angle
"""

import torch
from torch import nn
from torch.nn import functional as F


class Angle(nn.Module):
    def forward(self, first, second):
        cosine = (F.normalize(first, dim=-1) * F.normalize(second, dim=-1)).sum(-1)
        return torch.acos(cosine.clamp(-1.0, 1.0))  # FAULT


class Aligner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 48), nn.Tanh(), nn.Linear(48, 3))
        self.angle = Angle()

    def forward(self, x, direction):
        return self.angle(x + self.net(x) * 0.1, direction)


torch.manual_seed(24)
model = Aligner()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(120):
    x = torch.randn(16, 3)
    direction = x + 0.3 * torch.randn(16, 3)
    if step == 63:
        with torch.no_grad():
            direction[5] = (x + model.net(x) * 0.1)[5] * 2.0
            direction[6] = -(x + model.net(x) * 0.1)[6]
            direction[7] = (x + model.net(x) * 0.1)[7]
            direction[8] = -(x + model.net(x) * 0.1)[8] * 4.0
    loss = model(x, direction).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
