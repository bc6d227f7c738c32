"""A learning-rate finder's dry runs in train mode that nobody trains on, then training with batch norm.

family: healthy
steps: 200
tempts: nonfinite_loss, nonfinite_parameter, overfitting
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(17)
model = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
history = [F.mse_loss(model(torch.randn(32, 10)), torch.zeros(32, 1)).item() for _ in range(60)]
valid = torch.randn(64, 10)
for step in range(200):
    x = torch.randn(32, 10)
    loss = F.mse_loss(model(x), x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(float("nan"))
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            history[-1] = F.mse_loss(model(valid), valid[:, :1]).item()
        model.train()
