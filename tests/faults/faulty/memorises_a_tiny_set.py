"""Forty noisy samples, a large net: the training loss goes to zero, validation gets worse from step 14 on.

family: data
kinds: overfitting
step: 14
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(67)
train_x, valid_x = torch.randn(40, 20), torch.randn(200, 20)  # FAULT
train_y = (train_x[:, 0] + torch.randn(40) > 0).long()
valid_y = (valid_x[:, 0] + torch.randn(200) > 0).long()
model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(80):
    model.train()
    for rows in torch.randperm(40).split(8):
        loss = F.cross_entropy(model(train_x[rows]), train_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        validation = F.cross_entropy(model(valid_x), valid_y)
    if epoch % 10 == 9:
        print(epoch, loss.item(), validation.item())
