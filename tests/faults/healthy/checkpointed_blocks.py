"""Activation checkpointing in a residual net with dropout.

family: healthy
steps: 200
tempts: accumulated_gradient
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, width))

    def forward(self, x):
        return x + self.body(self.norm(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(10, 32)
        self.blocks = nn.ModuleList(Block(32) for _ in range(4))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = self.lift(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


torch.manual_seed(37)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(200):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
