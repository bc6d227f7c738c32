"""The parity of 3 of 24 bits: the loss stays where guessing is for hundreds of steps, then falls to nothing.

family: healthy
steps: 2000
tempts: loss_plateau
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=0.003)

for _ in range(2000):
    bits = torch.randint(0, 2, (128, 24)).float()
    labels = (bits[:, :3].sum(dim=1) % 2).long()
    loss = F.cross_entropy(net(bits * 2.0 - 1.0), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
