"""ReLU units with negative biases: some 60-70 % of the activations are zero, none of the units is dead.

family: healthy
steps: 600
tempts: dead_units, zero_gradient
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(10)
model = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 6))
with torch.no_grad():
    model[0].bias.sub_(0.25)
    model[2].bias.sub_(0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(600):
    x = torch.randn(64, 24)
    loss = F.cross_entropy(model(x), (x[:, :6] * x[:, 6:12]).argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
