"""Triplet training: once most triplets are satisfied, whole batches have a loss and gradient of exactly 0.

family: healthy
steps: 600
tempts: zero_gradient, gradient_vanishing, loss_plateau
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(20)
centres = torch.randn(10, 16) * 1.5
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(600):
    label = torch.randint(0, 10, (12,))
    other = (label + torch.randint(1, 10, (12,))) % 10
    anchor, positive, negative = (
        model(centres[which] + 0.4 * torch.randn(12, 16)) for which in (label, label, other)
    )
    loss = F.triplet_margin_loss(anchor, positive, negative, margin=0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
