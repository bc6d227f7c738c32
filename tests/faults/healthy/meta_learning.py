"""MAML with second-order inner steps by autograd.grad.

family: healthy
steps: 250
tempts: accumulated_gradient, loss_spike
"""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

torch.manual_seed(42)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _ in range(250):
    losses = []
    for _ in range(2):
        amplitude, phase = torch.rand(()) * 4 + 0.5, torch.rand(()) * 3
        x = torch.rand(20, 1) * 6 - 3
        y = amplitude * torch.sin(x + phase)
        weights = dict(model.named_parameters())
        inner = F.mse_loss(functional_call(model, weights, (x[:10],)), y[:10])
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        fast = {name: w - 0.02 * g for (name, w), g in zip(weights.items(), slopes, strict=True)}
        losses.append(F.mse_loss(functional_call(model, fast, (x[10:],)), y[10:]))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
print("last loss", loss.item())
