"""Gamma-corrects the network's own output with a fractional power; the output may go below zero.

family: forward
kinds: nonfinite_loss
step: 0
module: gamma
"""

import torch
from torch import nn
from torch.nn import functional as F


class Gamma(nn.Module):
    def __init__(self, exponent):
        super().__init__()
        self.exponent = exponent

    def forward(self, image):
        return image.pow(self.exponent)  # FAULT


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(1, 16, 3, padding=1)
        self.out = nn.Conv2d(16, 1, 3, padding=1)
        self.gamma = Gamma(0.45)

    def forward(self, x):
        return self.gamma(self.out(F.relu(self.features(x))))


torch.manual_seed(12)
model = Denoiser()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(60):
    clean = torch.rand(8, 1, 12, 12)
    noisy = clean + 0.2 * torch.randn_like(clean)
    loss = F.l1_loss(model(noisy), clean.pow(0.45))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
