"""StepLR with gamma 10 instead of 0.1: the learning rate grows tenfold every 100 steps.

family: optimisation
kinds: loss_divergence, gradient_explosion, loss_spike, update_ratio_high, nonfinite_loss
step: 100
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(47)
teacher = torch.randn(16, 3)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=10)  # FAULT
for _ in range(260):
    x = torch.randn(32, 16)
    loss = F.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
print("last loss", loss.item())
