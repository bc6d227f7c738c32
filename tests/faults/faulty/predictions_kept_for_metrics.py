"""Validation without no_grad keeps all logits of all epochs for a metric, each with its graph.

family: memory
kinds: memory_leak
step: 20
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(83)
model = nn.Sequential(nn.Linear(40, 800), nn.Tanh(), nn.Linear(800, 5))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
valid_x = torch.randn(512, 40)
predictions = []
for step in range(400):
    x = torch.randn(64, 40)
    loss = F.cross_entropy(model(x), x[:, :5].argmax(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        model.eval()
        predictions.append(model(valid_x))  # FAULT
        model.train()
print("accuracy", (predictions[-1].argmax(-1) == valid_x[:, :5].argmax(-1)).float().mean().item())
