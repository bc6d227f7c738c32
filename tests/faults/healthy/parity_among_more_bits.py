"""The parity of 3 of 30 bits: for 400 steps the loss is that of guessing, then it falls to nothing.

family: healthy
steps: 900
tempts: loss_plateau
"""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=0.002)

for _ in range(900):
    bits = torch.randint(0, 2, (128, 30)).float()
    labels = (bits[:, :3].sum(dim=1) % 2).long()
    loss = F.cross_entropy(net(bits * 2.0 - 1.0), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
