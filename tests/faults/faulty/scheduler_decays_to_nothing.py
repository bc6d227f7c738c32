"""An exponential schedule meant per epoch is stepped per batch: the learning rate is gone after 100 steps.

family: optimisation
kinds: update_ratio_low, parameter_not_updated, loss_plateau
step: 60
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(48)
model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.85)
for _ in range(400):
    x = torch.randn(32, 24)
    loss = F.cross_entropy(model(x), x[:, :8].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()  # FAULT
print("last loss", loss.item(), "learning rate", schedule.get_last_lr())
