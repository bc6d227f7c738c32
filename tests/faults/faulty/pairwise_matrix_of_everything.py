"""Validation compares every sample with every other at once: 12 TB are asked for.

family: memory
kinds: out_of_memory
step: 60
ends: error
"""

import torch
from torch import nn
from torch.nn import functional as F


def hardest_negatives(embedding):
    gaps = embedding[:, None, :] - embedding[None, :, :]  # FAULT
    return gaps.square().sum(-1).topk(5, largest=False).indices


torch.manual_seed(84)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(100):
    x = torch.randn(64, 12)
    loss = F.mse_loss(model(x), x[:, :8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 59:
        everything = torch.randn(600_000, 12)
        with torch.no_grad():
            print(hardest_negatives(model(everything)).shape)
