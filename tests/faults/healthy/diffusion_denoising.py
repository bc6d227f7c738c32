"""Noise prediction at random noise levels: the loss of a batch depends on the levels it drew.

family: healthy
steps: 800
tempts: loss_spike, gradient_explosion
"""

import torch
from torch import nn
from torch.nn import functional as F


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(1, 32)
        self.first = nn.Linear(2, 32)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x, level):
        return self.body(self.first(x) + self.time(level))


torch.manual_seed(32)
model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for _ in range(800):
    clean = torch.randn(16, 2) * 0.1 + torch.tensor([1.0, -1.0]) * torch.randint(0, 2, (16, 1)).mul(2).sub(1)
    level = torch.rand(16, 1)
    noise = torch.randn_like(clean)
    noisy = (1 - level).sqrt() * clean + level.sqrt() * noise
    loss = F.mse_loss(model(noisy, level), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
