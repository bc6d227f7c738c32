"""Compresses a spectrogram with pow(0.3); silence makes the power of 0 with an infinite slope.

family: backward
kinds: nonfinite_gradient
step: 77
module: compress
"""

import torch
from torch import nn
from torch.nn import functional as F


class PowerCompression(nn.Module):
    def __init__(self, exponent):
        super().__init__()
        self.exponent = exponent

    def forward(self, energy):
        return energy.pow(self.exponent)  # FAULT


class Enhancer(nn.Module):
    def __init__(self, bands):
        super().__init__()
        self.gain = nn.Linear(bands, bands)
        self.compress = PowerCompression(0.3)

    def forward(self, energy):
        return self.compress(energy * F.softplus(self.gain(energy)))


torch.manual_seed(25)
model = Enhancer(20)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(130):
    clean = torch.rand(16, 20) + 0.05
    noisy = clean * (1 + torch.rand(16, 20))
    if step == 77:
        clean[9] = noisy[9] = 0.0
    loss = F.l1_loss(model(noisy), clean.pow(0.3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
