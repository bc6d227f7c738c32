"""Softmax over dimension 0 before the loss: probabilities are shared between samples, little is learned.

family: wiring
kinds: loss_plateau, output_degenerate, gradient_vanishing
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 10))

    def forward(self, x):
        return F.softmax(self.net(x), dim=0)  # FAULT


torch.manual_seed(77)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(600):
    x = torch.randn(128, 16)
    loss = F.cross_entropy(model(x), x[:, :10].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
