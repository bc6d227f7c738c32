"""Full-batch gradient descent with a large step: the loss oscillates on its way down.

family: healthy
steps: 1200
tempts: loss_spike, gradient_explosion, loss_divergence
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(19)
x = torch.randn(96, 10)
y = torch.sin(x @ torch.randn(10, 2))
model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.35)
for _ in range(1200):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
