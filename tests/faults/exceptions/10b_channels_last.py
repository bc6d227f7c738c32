import numpy as np
import torch
from torch import nn

encoder = nn.Sequential(
    nn.Conv2d(3, 12, kernel_size=3, stride=2),
    nn.ReLU(),
    nn.Conv2d(12, 24, kernel_size=3, stride=2),
)
raw = np.random.randint(0, 255, size=(5, 32, 32, 3)).astype(np.float32)
photos = torch.from_numpy(raw / 255)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
codes = encoder(photos)
loss = codes.var()
loss.backward()
optimizer.step()
