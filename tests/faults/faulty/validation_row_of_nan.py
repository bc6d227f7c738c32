"""The validation file has a row of NaN since it was written anew; training itself is healthy.

family: data
kinds: nonfinite_loss
step: 99
origin: none
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(14)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
valid = torch.randn(64, 10)
for step in range(240):
    x = torch.randn(32, 10)
    loss = F.mse_loss(model(x), x[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 90:
        valid[7] = float("nan")  # FAULT
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            print(step, F.mse_loss(model(valid), valid[:, :1]).item())
        model.train()
