"""Discrete codes by Gumbel-softmax with an annealed temperature: gradients get noisier as it falls.

family: healthy
steps: 600
tempts: gradient_explosion, loss_spike, saturated_activation
"""

import torch
from torch import nn
from torch.nn import functional as F


class DiscreteCode(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 4 * 6)
        self.decoder = nn.Linear(4 * 6, 12)

    def forward(self, x, temperature):
        code = F.gumbel_softmax(self.encoder(x).view(-1, 4, 6), tau=temperature, hard=temperature < 0.5)
        return self.decoder(code.flatten(1))


torch.manual_seed(51)
basis = torch.randn(3, 12)
model = DiscreteCode()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(600):
    x = torch.randn(32, 3).sign() @ basis
    loss = F.mse_loss(model(x, max(0.3, 2.0 - step / 250)), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
