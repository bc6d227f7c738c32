"""Negative log-likelihood as the log of a softmax; an outlier saturates the softmax to an exact zero.

family: forward
kinds: nonfinite_loss
step: 120
module: outside
"""

import torch
from torch import nn


def nll(logits, targets):
    probabilities = torch.softmax(logits, dim=-1)
    picked = probabilities.gather(1, targets[:, None]).squeeze(1)
    return -torch.log(picked).mean()  # FAULT


def main():
    torch.manual_seed(1)
    features = torch.randn(200 * 32, 20)
    targets = (features[:, :5]).argmax(1)
    features[120 * 32 + 3] *= 400.0  # a sensor glitch
    targets[120 * 32 + 3] = (features[120 * 32 + 3, :5]).argmin()
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(200):
        rows = slice(step * 32, step * 32 + 32)
        optimizer.zero_grad()
        loss = nll(model(features[rows]), targets[rows])
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())


main()
