"""A run that pauses: seconds of evaluation and of data preparation between quick steps.

family: healthy
steps: 150
tempts: hang, performance_degradation
"""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(46)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(150):
    if step % 50 == 0:
        time.sleep(2.5)  # stands for reading the next shard
    x = torch.randn(32, 16)
    loss = F.cross_entropy(model(x), x[:, :4].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 49:
        model.eval()
        until = time.monotonic() + 6
        with torch.no_grad():
            while time.monotonic() < until:
                model(torch.randn(512, 16))
        model.train()
print("last loss", loss.item())
