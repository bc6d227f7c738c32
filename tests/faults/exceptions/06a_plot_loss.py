import numpy as np
import torch
from torch import nn

model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for epoch in range(5):
    x = torch.randn(16, 3)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    history.append(loss.numpy())
print(np.mean(history))
