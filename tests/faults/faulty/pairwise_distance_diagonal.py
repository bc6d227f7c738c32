"""All pairwise distances by the Gram matrix: the diagonal is sqrt(0), masked out only after the root.

family: backward
kinds: nonfinite_gradient
step: 0
module: outside
"""

import torch
from torch import nn


def pairwise_distances(x):
    squares = x.square().sum(-1)
    gaps = squares[:, None] - 2 * x @ x.T + squares[None, :]
    gaps = gaps.clamp_min(0) * (1 - torch.eye(len(x)))
    return gaps.sqrt()  # FAULT


def main():
    torch.manual_seed(23)
    points = torch.randn(24, 10)
    wanted = torch.cdist(points, points)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    off_diagonal = ~torch.eye(24, dtype=torch.bool)
    for _ in range(80):
        stress = (pairwise_distances(model(points)) - wanted)[off_diagonal].square().mean()
        optimizer.zero_grad()
        stress.backward()
        optimizer.step()
    print("last stress", stress.item())


main()
