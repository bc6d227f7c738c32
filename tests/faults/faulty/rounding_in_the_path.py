"""Quantises codes with round() and no straight-through estimator: the encoder's gradient is exactly 0.

family: wiring
kinds: zero_gradient, parameter_not_updated
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class QuantisedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 24))

    def forward(self, x):
        code = torch.round(self.encoder(x) * 4) / 4  # FAULT
        return self.decoder(code)


torch.manual_seed(73)
basis = torch.randn(6, 24)
model = QuantisedAutoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(250):
    x = torch.randn(32, 6) @ basis
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
