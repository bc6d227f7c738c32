"""Keeps an exponential average in place and swaps it in, after dividing by a correction of 1 - 1.

family: optimisation
kinds: nonfinite_parameter, nonfinite_loss
step: 50
module: outside
"""

import torch
from torch import nn
from torch.nn import functional as F


class WeightAverage:
    def __init__(self, model, decay):
        self.decay, self.count = decay, 0
        self.average = [torch.zeros_like(p) for p in model.parameters()]

    def update(self, model):
        for mean, parameter in zip(self.average, model.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 1 - self.decay)
        self.count += 1

    def swap_in(self, model):
        correction = 1 - self.decay**self.count
        for mean, parameter in zip(self.average, model.parameters(), strict=True):
            parameter.data.copy_(mean / correction)  # FAULT


def main():
    torch.manual_seed(39)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    average = WeightAverage(model, decay=0.99)
    for step in range(100):
        x = torch.randn(16, 6)
        if step == 50:
            average = WeightAverage(model, decay=0.99)
            average.swap_in(model)
        loss = F.mse_loss(model(x), x[:, :1] * x[:, 1:2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
    print("last loss", loss.item())


main()
