"""Gradient penalty takes the norm of a critic's gradient by sqrt; a flat critic region gives sqrt(0).

family: backward
kinds: nonfinite_gradient
step: 37
module: outside
"""

import torch
from torch import nn


def gradient_penalty(critic, samples):
    samples = samples.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(samples).sum(), samples, create_graph=True)
    length = slope.square().sum(-1).sqrt()  # FAULT
    return (length - 1).square().mean()


def main():
    torch.manual_seed(31)
    critic = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    for step in range(90):
        real, fake = torch.randn(16, 4) + 1.0, torch.randn(16, 4)
        if step == 37:
            with torch.no_grad():
                critic[0].bias.fill_(-50.0)  # loaded from a broken checkpoint: every unit is off
        loss = critic(fake).mean() - critic(real).mean() + 10 * gradient_penalty(critic, fake)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
