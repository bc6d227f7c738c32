"""A residual branch is multiplied by a gate of 0 that was made a buffer, not a parameter: it never opens.

family: wiring
kinds: zero_gradient, parameter_not_updated
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class GatedBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.register_buffer("gate", torch.zeros(()))  # FAULT

    def forward(self, x):
        return x + self.gate * self.branch(x)


torch.manual_seed(78)
model = nn.Sequential(nn.Linear(12, 32), GatedBlock(32), GatedBlock(32), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(250):
    x = torch.randn(32, 12)
    loss = F.cross_entropy(model(x), (x[:, :4] * x[:, 4:8]).argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
