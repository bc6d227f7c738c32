"""Clips to a norm of 1e-6 (the eps of another call was passed as max_norm); with SGD nothing moves.

family: optimisation
kinds: update_ratio_low, parameter_not_updated, loss_plateau
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(52)
model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for _ in range(300):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-6)  # FAULT
    optimizer.step()
print("last loss", loss.item())
