import numpy as np
import torch
from torch import nn

rows = np.array([[0.1, 0.5, 0], [0.3, 0.2, 1], [0.9, 0.4, 2], [0.7, 0.1, 1]], dtype=np.float32)
x = torch.from_numpy(rows[:, :2])
y = torch.from_numpy(rows[:, 2])
classifier = nn.Linear(2, 3)
criterion = nn.CrossEntropyLoss()
opt = torch.optim.SGD(classifier.parameters(), lr=0.1)
for _ in range(3):
    opt.zero_grad()
    loss = criterion(classifier(x), y)
    loss.backward()
    opt.step()
