"""Weights from a standard normal in a wide deep net: activations grow 11-fold with each layer.

family: initialisation
kinds: poor_initialization, gradient_explosion, output_degenerate
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


def initialise(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight)  # FAULT


torch.manual_seed(56)
layers = [nn.Linear(32, 256), nn.ReLU()]
for _ in range(3):
    layers += [nn.Linear(256, 256), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(256, 10))
model.apply(initialise)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(120):
    x = torch.randn(32, 32)
    loss = F.cross_entropy(model(x), x[:, :10].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
print("last loss", loss.item())
