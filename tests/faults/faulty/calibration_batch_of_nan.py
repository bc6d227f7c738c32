"""Statistics of an image normaliser are refreshed in mid-run by forwards without gradients; one batch is NaN.

family: data
kinds: nonfinite_parameter, nonfinite_loss
step: 120
origin: none
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(13)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
held_out = torch.randn(32, 3, 8, 8)
for step in range(240):
    x = torch.randn(16, 3, 8, 8)
    loss = F.cross_entropy(model(x), x[:, 0, :2, :2].flatten(1).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 120:
        with torch.no_grad():
            model(torch.full((16, 3, 8, 8), float("nan")))  # FAULT
    if step % 40 == 39:
        model.eval()
        with torch.no_grad():
            valid = F.cross_entropy(model(held_out), held_out[:, 0, :2, :2].flatten(1).argmax(1))
        model.train()
        print(step, valid.item())
