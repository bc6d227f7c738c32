"""A variational autoencoder takes exp of an unbounded log-variance; one image was not divided by 255.

family: forward
kinds: nonfinite_loss
step: 110
module: "" | outside
"""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self, pixels, latent):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, 64), nn.ReLU())
        self.mean = nn.Linear(64, latent)
        self.log_variance = nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, pixels))

    def forward(self, x):
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        noise = torch.randn_like(mean)
        z = mean + noise * torch.exp(0.5 * log_variance)  # FAULT
        return self.decoder(z), mean, log_variance


def load_images(count):
    images = torch.rand(count, 49).pow(3)
    images[110 * 20 + 4] *= 255 * 255
    return images


def elbo(reconstruction, x, mean, log_variance):
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()  # ORIGIN
    return F.mse_loss(reconstruction, x, reduction="sum") / len(x) + kl


def main():
    torch.manual_seed(5)
    model = VAE(49, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x in load_images(160 * 20).split(20):
        loss = elbo(model(x)[0], x, *model(x)[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
