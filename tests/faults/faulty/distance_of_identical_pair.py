"""Siamese distances by sqrt of a sum of squares; an identical pair has distance 0 and slope infinity.

family: backward
kinds: nonfinite_gradient
step: 84
module: outside
"""

import torch
from torch import nn


def distance(first, second):
    squares = (first - second).square().sum(dim=-1)
    return torch.sqrt(squares)  # FAULT


def contrastive(gap, same):
    return (same * gap.square() + (1 - same) * (1.0 - gap).clamp_min(0).square()).mean()


def main():
    torch.manual_seed(21)
    encoder = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 8))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    for step in range(140):
        left = torch.randn(16, 12)
        same = (torch.rand(16) > 0.5).float()
        right = torch.where(same[:, None] > 0, left + 0.1 * torch.randn_like(left), torch.randn_like(left))
        if step == 84:
            right[6] = left[6]  # the same photograph twice
        loss = contrastive(distance(encoder(left), encoder(right)), same)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
