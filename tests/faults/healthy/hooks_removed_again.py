"""Every tenth step all modules get hooks that are removed after it; ten more stay on, one each epoch.

family: healthy
steps: 1500
tempts: memory_leak
"""

import torch
from torch import nn


def look(module, args, output):
    return None


torch.manual_seed(29)
model = nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 10))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for step in range(1500):
    x = torch.randn(32, 100)
    handles = [module.register_forward_hook(look) for module in model.modules()] if step % 10 == 0 else []
    if step % 150 == 0:
        model[0].register_forward_hook(look)
    loss = (model(x) - x[:, :10]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for handle in handles:
        handle.remove()
