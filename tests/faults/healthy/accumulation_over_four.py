"""Gradient accumulation over four micro-batches with clipping.

family: healthy
steps: 250
tempts: accumulated_gradient
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(18)
model = nn.Sequential(nn.Linear(14, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for micro in range(1000):
    x = torch.randn(8, 14)
    loss = F.cross_entropy(model(x), x[:, :7].argmax(-1)) / 4
    loss.backward()
    if micro % 4 == 3:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
print("last loss", loss.item() * 4)
