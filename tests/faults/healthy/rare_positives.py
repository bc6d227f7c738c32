"""Fraud detection with 2 % positives and a weight on them: the loss of a batch depends on how many it has.

family: healthy
steps: 1200
tempts: loss_spike, gradient_explosion
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(23)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(1200):
    x = torch.randn(32, 12)
    y = ((x[:, 0] + x[:, 1] + 0.5 * torch.randn(32)) > 3.1).float()
    logits = model(x).squeeze(-1)
    loss = F.binary_cross_entropy_with_logits(logits, y, pos_weight=torch.tensor(20.0))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
