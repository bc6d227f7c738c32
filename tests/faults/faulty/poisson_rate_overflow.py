"""Predicts counts with exp(head(x)); a feature arrives in the wrong unit and exp overflows float32.

family: forward
kinds: nonfinite_loss
step: 75
module: ""
"""

import torch
from torch import nn


class CountModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        log_rate = self.head(self.body(x)).squeeze(-1)
        return log_rate.exp()  # FAULT


def poisson_nll(rate, count):
    return (rate - count * torch.log(rate + 1e-8)).mean()


torch.manual_seed(6)
features = torch.rand(140 * 32, 6)
counts = torch.poisson(torch.exp(features.sum(1) * 0.5))
features[75 * 32 + 1] = torch.tensor([900.0, 800.0, 950.0, 990.0, 700.0, 860.0])
model = CountModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for x, y in zip(features.split(32), counts.split(32), strict=True):
    loss = poisson_nll(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
