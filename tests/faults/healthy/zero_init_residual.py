"""Residual blocks whose last layer starts at zero (fixup, adaLN-zero): inner layers wait one step.

family: healthy
steps: 500
tempts: zero_gradient, poor_initialization, gradient_vanishing
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, x):
        return x + self.down(F.silu(self.up(x)))


torch.manual_seed(41)
model = nn.Sequential(nn.Linear(10, 32), Block(32), Block(32), Block(32), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(500):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
