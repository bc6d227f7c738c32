"""Binary cross-entropy from probabilities by hand: a sigmoid of exactly 1 makes log(0), and 0 times it NaN.

family: forward
kinds: nonfinite_loss
step: 100
module: outside
"""

import torch
from torch import nn


def binary_cross_entropy(p, y):
    positive = y * torch.log(p)
    negative = (1 - y) * torch.log(1 - p)  # FAULT
    return -(positive + negative).mean()


def main():
    torch.manual_seed(7)
    x = torch.randn(160, 24, 10)
    y = (x[..., 0] > 0).float()
    x[100, 5] = 60.0
    y[100, 5] = 1.0
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    nn.init.constant_(model[2].weight, 0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(160):
        probability = model(x[step]).squeeze(-1)
        loss = binary_cross_entropy(probability, y[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
