import torch
import torch.nn as nn

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Linear(10, 3)
        self.logvar = nn.Linear(10, 3)

    def forward(self, x):
        return self.mu(x), self.logvar(x)

vae = VAE()
running = 0.0
for batch in torch.randn(12, 10).split(4):
    mu, logvar = vae(batch)
    kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(dim=1)
    kl.mean().backward()
    running += kl.item()
