import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
data = rng.normal(size=(20, 3))
x = torch.from_numpy(data)
y = torch.from_numpy(data.sum(axis=1, keepdims=True))
linreg = nn.Linear(3, 1)
opt = torch.optim.SGD(linreg.parameters(), lr=0.1)
for epoch in range(5):
    loss = nn.functional.mse_loss(linreg(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
