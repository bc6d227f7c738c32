"""On-policy values of a long corridor, rewarded at its end: the loss rises from near 0 as values spread.

family: healthy
steps: 800
tempts: loss_divergence, loss_spike
"""

import copy

import torch
from torch import nn

torch.manual_seed(67)
values = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
nn.init.zeros_(values[2].weight)
nn.init.zeros_(values[2].bias)
target = copy.deepcopy(values)
optimizer = torch.optim.Adam(values.parameters(), lr=1e-3)
places = torch.eye(20)
for _ in range(800):
    here = torch.randint(0, 20, (32,))
    there = (here + torch.randint(-1, 3, (32,))).clamp(0, 19)
    reward = 5.0 * (there == 19).float().unsqueeze(1)
    with torch.no_grad():
        wanted = reward + 0.97 * target(places[there])
    loss = (values(places[here]) - wanted).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), values.parameters(), strict=True):
            slow.lerp_(fast, 0.02)
print("last loss", loss.item())
