"""A small GAN on a ring: two losses that pull against each other and never settle.

family: healthy
steps: 500
tempts: loss_divergence, loss_spike, gradient_explosion
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


def ring(count):
    angle = torch.rand(count) * 2 * math.pi
    return torch.stack([angle.cos(), angle.sin()], -1) * 2 + 0.05 * torch.randn(count, 2)


torch.manual_seed(4)
generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
discriminator = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
for step in range(500):
    real, noise = ring(64), torch.randn(64, 8)
    fake = generator(noise)
    d_real, d_fake = discriminator(real), discriminator(fake.detach())
    d_loss = F.binary_cross_entropy_with_logits(d_real, torch.ones_like(d_real)) + (
        F.binary_cross_entropy_with_logits(d_fake, torch.zeros_like(d_fake))
    )
    discriminator_optimizer.zero_grad()
    d_loss.backward()
    discriminator_optimizer.step()
    score = discriminator(fake)
    g_loss = F.binary_cross_entropy_with_logits(score, torch.ones_like(score))
    generator_optimizer.zero_grad()
    g_loss.backward()
    generator_optimizer.step()
    if step % 100 == 0:
        print(step, d_loss.item(), g_loss.item())
