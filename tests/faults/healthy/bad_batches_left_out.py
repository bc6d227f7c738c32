"""One batch in twenty has a NaN among its targets; the script leaves it out, and layer norms keep nothing.

family: healthy
steps: 380
tempts: nonfinite_loss, nonfinite_parameter
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(15)
model = nn.Sequential(nn.Linear(20, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(400):
    x = torch.randn(32, 20)
    target = x[:, :4] * 2
    if step % 20 == 7:
        target[3, 2] = float("nan")
    loss = F.mse_loss(model(x), target)
    if not torch.isfinite(loss):
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
