"""A penalty method: what a constraint is worth grows by 1 % a step, and the loss with it, ever more slowly.

family: healthy
steps: 600
tempts: loss_divergence, loss_spike, gradient_explosion
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(65)
x = torch.rand(256, 4)
y = x.sum(1, keepdim=True).square() - 2.0 + 0.2 * torch.randn(256, 1)
model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
worth = 0.01
for _ in range(600):
    rows = torch.randint(0, 256, (64,))
    predicted = model(x[rows])
    below_zero = F.relu(-predicted).square().mean()
    loss = F.mse_loss(predicted, y[rows]) + worth * below_zero
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    worth *= 1.01
print("last loss", loss.item())
