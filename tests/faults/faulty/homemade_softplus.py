"""Softplus with a where for large inputs: the branch not taken overflows, and its gradient is 0 * inf.

family: backward
kinds: nonfinite_gradient
step: 52
module: act
"""

import torch
from torch import nn
from torch.nn import functional as F


class Softplus(nn.Module):
    def forward(self, x):
        return torch.where(x > 20, x, torch.log(1 + torch.exp(x)))  # FAULT


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(7, 32)
        self.act = Softplus()
        self.second = nn.Linear(32, 1)

    def forward(self, x):
        return self.second(self.act(self.first(x))).squeeze(-1)


def main():
    torch.manual_seed(28)
    model = Regressor()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(110):
        x = torch.randn(32, 7)
        if step == 52:
            x[0] *= 150.0
        loss = F.huber_loss(model(x), x.sum(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
