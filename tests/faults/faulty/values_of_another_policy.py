"""Values of a policy learnt from another one's transitions, each towards twice itself: they grow without end.

family: optimisation
kinds: loss_divergence, gradient_explosion, update_ratio_high
step: 0
"""

import torch
from torch import nn

torch.manual_seed(62)
features = torch.randn(2, 12) * 0.1 + torch.tensor([[1.0], [2.0]]) * torch.randn(12)
values = nn.Sequential(nn.Linear(12, 12, bias=False), nn.Linear(12, 1))
optimizer = torch.optim.SGD(values.parameters(), lr=2e-4)
for _ in range(400):
    noise = 0.05 * torch.randn(32, 2, 12)
    here, there = (features + noise).unbind(1)
    with torch.no_grad():
        wanted = 0.1 * torch.randn(32, 1) + 0.99 * values(there)  # FAULT
    loss = (values(here) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
