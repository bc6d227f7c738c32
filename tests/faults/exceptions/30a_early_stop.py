import torch
from torch import nn

model = nn.Linear(2, 1)
criterion = nn.L1Loss(reduction="none")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = float("inf")
for epoch in range(10):
    x = torch.randn(6, 2)
    loss = criterion(model(x), x[:, :1])
    optimizer.zero_grad()
    loss.mean().backward()
    optimizer.step()
    if loss < best:
        best = loss
