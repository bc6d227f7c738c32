import torch
from torch import nn

disc = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = disc(fake)
    grads = torch.autograd.grad(score.sum(), mixed, create_graph=True)[0]
    return ((grads.norm(dim=1) - 1) ** 2).mean()

real = torch.randn(32, 2)
fake = torch.rand(32, 2)
loss = disc(fake).mean() - disc(real).mean() + 10 * gradient_penalty(real, fake)
loss.backward()
