"""A physics-informed network: derivatives by create_graph, boundary and residual losses of different size.

family: healthy
steps: 300
tempts: accumulated_gradient, loss_spike
"""

import math

import torch
from torch import nn


def derivative(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


torch.manual_seed(31)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
ends = torch.tensor([[0.0], [math.pi]])
for _ in range(300):
    x = (torch.rand(64, 1) * math.pi).requires_grad_(True)
    y = model(x)
    residual = derivative(derivative(y, x), x) + torch.sin(x)
    loss = residual.square().mean() + 10 * model(ends).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
