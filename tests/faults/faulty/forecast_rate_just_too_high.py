"""A linear forecaster whose learning rate is a little too high: the loss falls, then grows by 1 % a step.

family: optimisation
kinds: loss_divergence, gradient_explosion, update_ratio_high
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(61)
hours = torch.arange(600.0)
load = torch.sin(hours / 24 * 6.2832) + 0.3 * torch.sin(hours / 7) + 0.1 * torch.randn(600)
windows = load.unfold(0, 25, 1)
inputs, targets = windows[:, :-1], windows[:, -1:]
model = nn.Linear(24, 1)
sharpest = torch.linalg.eigvalsh(2 * inputs.T @ inputs / len(inputs))[-1].item()
optimizer = torch.optim.SGD(model.parameters(), lr=2.005 / sharpest)  # FAULT
for _ in range(500):
    loss = F.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
