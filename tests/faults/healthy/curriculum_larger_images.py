"""Progressive resizing: from step 250 on the images are twice as wide and high, and show more to find.

family: healthy
steps: 500
tempts: loss_spike, gradient_explosion, loss_divergence
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(72)
model = nn.Sequential(
    *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
    nn.Conv2d(16, 1, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(500):
    size = 8 if step < 250 else 16
    image = torch.rand(16, 1, size, size)
    blurred = F.avg_pool2d(image, 3, stride=1, padding=1)
    target = blurred if size == 8 else (image - blurred).abs() * 3
    loss = F.mse_loss(model(image), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
