"""torch.where hides a division by 0 in forward, but backward still multiplies 0 by infinity.

family: backward
kinds: nonfinite_gradient
step: 57
module: pool
"""

import torch
from torch import nn
from torch.nn import functional as F


class MeanOfNeighbours(nn.Module):
    def forward(self, x, adjacency):
        total = adjacency @ x
        weight = (adjacency @ x.abs()).sum(-1, keepdim=True)
        mean = total / weight  # FAULT
        return torch.where(weight > 0, mean, torch.zeros_like(mean))


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(5, 24)
        self.pool = MeanOfNeighbours()
        self.head = nn.Linear(24, 3)

    def forward(self, x, adjacency):
        return self.head(self.pool(self.lift(x), adjacency))


def random_graph(nodes, isolated):
    adjacency = (torch.rand(nodes, nodes) > 0.6).float()
    adjacency.fill_diagonal_(0)
    adjacency[:, 0] = 1.0
    adjacency[0, 1] = 1.0
    if isolated:
        adjacency[4] = 0.0
    return adjacency


torch.manual_seed(22)
model = GraphNet()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(120):
    x = torch.randn(14, 5)
    logits = model(x, random_graph(14, isolated=step == 57))
    loss = F.cross_entropy(logits, x[:, :3].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
