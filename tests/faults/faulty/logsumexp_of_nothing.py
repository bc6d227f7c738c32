"""Scores a lattice by logsumexp over allowed paths; a frame without a path is -inf in a weighted sum.

family: forward
kinds: nonfinite_loss
step: 61
module: score
"""

import torch
from torch import nn


class LatticeScore(nn.Module):
    def forward(self, emissions, allowed):
        paths = emissions.masked_fill(~allowed, float("-inf"))
        return torch.logsumexp(paths, dim=-1)  # FAULT


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emit = nn.Linear(10, 8)
        self.score = LatticeScore()

    def forward(self, frames, allowed):
        return self.score(self.emit(frames), allowed)


torch.manual_seed(32)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(110):
    frames = torch.randn(12, 10)
    allowed = torch.rand(12, 8) > 0.4
    allowed[:, 0] = True
    if step == 61:
        allowed[7] = False
    every = torch.ones_like(allowed)
    loss = (model(frames, every) - model(frames, allowed)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
