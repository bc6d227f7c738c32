"""A token classifier whose labels were shifted past the padding: all targets are ignored, the loss is a sum.

family: data
kinds: zero_gradient
step: 0
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(5)
model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 7))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(150):
    tokens = torch.randint(0, 30, (8, 12))
    labels = torch.full_like(tokens, -100)  # FAULT
    loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
