"""Only the scheduler is stepped, the optimizer never: nothing is learned and gradients pile up.

family: optimisation
kinds: parameter_not_updated, accumulated_gradient, loss_plateau
step: 1
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(51)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=200)
for _ in range(250):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), x[:, :3].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    schedule.step()  # FAULT
print("last loss", loss.item())
