"""A variational autoencoder whose KL weight is annealed from 0 to 1: the loss rises by design.

family: healthy
steps: 600
tempts: loss_divergence
"""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


torch.manual_seed(16)
basis = torch.randn(4, 32)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(600):
    x = torch.randn(32, 4) @ basis + 0.1 * torch.randn(32, 32)
    reconstruction, mean, log_variance = model(x)
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
    loss = F.mse_loss(reconstruction, x, reduction="sum") / 32 + min(1.0, step / 300) * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
