"""A ranker with easy pairs for its first 40 steps, whose margin it keeps by chance; then come the hard ones.

family: healthy
steps: 250
tempts: zero_gradient, loss_spike, loss_divergence
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(8)
model = nn.Linear(10, 1)
with torch.no_grad():
    model.weight.fill_(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(250):
    better, worse = torch.randn(16, 10), torch.randn(16, 10)
    if step < 40:
        better, worse = better.abs() + 1, -worse.abs() - 1
    else:
        better = better + 0.5
    loss = F.relu(0.1 - model(better) + model(worse)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
