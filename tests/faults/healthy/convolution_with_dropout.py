"""A convolutional net with batch norm, dropout and augmentation.

family: healthy
steps: 250
tempts: loss_spike
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(14)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Dropout(0.4),
    nn.Linear(16, 3),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=250)
for _ in range(250):
    label = torch.randint(0, 3, (32,))
    image = torch.rand(32, 1, 12, 12) * 0.5
    for row, kind in enumerate(label.tolist()):
        position = torch.randint(0, 12, ()).item()
        if kind == 0:
            image[row, 0, position] += 1
        elif kind == 1:
            image[row, 0, :, position] += 1
    loss = F.cross_entropy(model(image), label, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print("last loss", loss.item())
