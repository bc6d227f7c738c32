"""A ratio computed for the targets divides by zero once; inputs are fine.

family: data
kinds: nonfinite_input, nonfinite_loss
step: 47
module: outside
"""

import torch
from torch import nn
from torch.nn import functional as F


def targets_of(clicks, views):
    return clicks / views  # FAULT


def main():
    torch.manual_seed(37)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(120):
        x = torch.randn(16, 8)
        views = torch.randint(10, 100, (16,)).float()
        clicks = (views * torch.sigmoid(x[:, 0])).round()
        if step == 47:
            clicks[4], views[4] = 1.0, 0.0
        prediction = model(x).squeeze(-1)
        loss = F.mse_loss(prediction, targets_of(clicks, views))  # ORIGIN
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
