import numpy as np
import torch
from torch import nn

pixels = torch.from_numpy(np.random.randint(0, 256, (10, 64)))
center = pixels.mean(dim=0)
inputs = (pixels - center) / 255
model = nn.Linear(64, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(inputs).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
