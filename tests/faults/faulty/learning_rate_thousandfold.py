"""Adam with a learning rate of 1.0: somebody wrote 1e0 for 1e-3.

family: optimisation
kinds: loss_divergence, gradient_explosion, loss_spike, update_ratio_high, dead_units, loss_plateau
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(40)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e0)  # FAULT
for _ in range(250):
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
