"""Step decay of the learning rate by ten, twice: the loss drops abruptly, updates shrink a hundredfold.

family: healthy
steps: 900
tempts: update_ratio_low, gradient_vanishing, loss_plateau
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(52)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[400, 700], gamma=0.1)
for _ in range(900):
    x = torch.randn(64, 16)
    loss = F.cross_entropy(model(x), (x[:, :4] + 0.5 * torch.randn(64, 4)).argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print("last loss", loss.item())
