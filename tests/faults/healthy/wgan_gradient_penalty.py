"""WGAN-GP: five critic steps for each generator step, a double backward, losses around zero.

family: healthy
steps: 300
tempts: loss_divergence, accumulated_gradient
"""

import torch
from torch import nn


def penalty(critic, real, fake):
    mix = torch.rand(len(real), 1)
    point = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(point).sum(), point, create_graph=True)
    return ((slope.square().sum(-1) + 1e-12).sqrt() - 1).square().mean()


def main():
    torch.manual_seed(5)
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for step in range(300):
        real = torch.randn(32, 2) * 0.3 + torch.tensor([1.0, -1.0])
        fake = generator(torch.randn(32, 4)).detach()
        loss = critic(fake).mean() - critic(real).mean() + 10 * penalty(critic, real, fake)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if step % 5 == 4:
            generator_optimizer.zero_grad()
            (-critic(generator(torch.randn(32, 4))).mean()).backward()
            generator_optimizer.step()
    print("last critic loss", loss.item())


main()
