"""L-BFGS with line search: many closure evaluations a step, ending in tiny gradients.

family: healthy
steps: 60
tempts: gradient_vanishing, loss_spike, accumulated_gradient
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(56)
x = torch.linspace(-2, 2, 100)[:, None]
y = torch.sin(3 * x)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=5, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(60):
    loss = optimizer.step(closure)
print("last loss", loss.item())
