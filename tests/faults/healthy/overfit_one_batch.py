"""The sanity check of overfitting one batch on purpose: the loss goes to zero and stays there.

family: healthy
steps: 700
tempts: overfitting, gradient_vanishing, update_ratio_low, loss_plateau
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(48)
x, y = torch.randn(16, 20), torch.randint(0, 5, (16,))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(700):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
