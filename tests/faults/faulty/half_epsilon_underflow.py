"""The 1e-8 that saves the root in float32 rounds to 0 in float16, so an empty token has slope infinity.

family: backward
kinds: nonfinite_gradient
step: 48
module: norm
"""

import torch
from torch import nn
from torch.nn import functional as F


class UnitNorm(nn.Module):
    def forward(self, x):
        length = torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-8)  # FAULT
        return x / (length + 0.01)


class HalfNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(16, 32, bias=False)
        self.norm = UnitNorm()
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        hidden = self.norm(self.lift(x).half())
        return self.head(hidden.float())


torch.manual_seed(29)
model = HalfNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100):
    x = torch.randn(16, 16)
    if step == 48:
        x[2] = 0.0
    loss = F.cross_entropy(model(x), x[:, :5].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
