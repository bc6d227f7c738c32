"""Initialises a scale from data by the inverse softplus, log(exp(x) - 1), which overflows for large x.

family: forward
kinds: nonfinite_loss
step: 45
module: scale
"""

import torch
from torch import nn
from torch.nn import functional as F


class AdaptiveScale(nn.Module):
    def forward(self, x, amplitude):
        raw = torch.log(torch.exp(amplitude) - 1)  # FAULT
        return x * F.softplus(raw + 0.1)


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ELU(), nn.Linear(64, 16))
        self.scale = AdaptiveScale()

    def forward(self, x):
        amplitude = x.abs().amax(-1, keepdim=True)
        return self.scale(self.net(x / amplitude), amplitude)


torch.manual_seed(19)
model = Vocoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100):
    clip = torch.randn(16, 16)
    if step == 45:
        clip[2] = clip[2] * 120.0
    loss = F.l1_loss(model(clip), clip)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
