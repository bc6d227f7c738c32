"""The padding mask is inverted for batches without padding: every element of the loss is multiplied by 0.

family: data
kinds: zero_gradient
step: 0
"""

import torch
from torch import nn

torch.manual_seed(6)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(150):
    x = torch.randn(16, 10)
    is_padding = torch.zeros(16, 10)
    loss = ((model(x) - x) ** 2 * is_padding).sum() / 160  # FAULT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
