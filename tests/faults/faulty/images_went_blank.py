"""The decoder library starts to return black images: the first layer sees zeros only.

family: data
kinds: zero_gradient, output_degenerate, loss_spike, input_out_of_range
step: 110
"""

import torch
from torch import nn
from torch.nn import functional as F


def decode(step):
    label = torch.randint(0, 3, (16,))
    image = torch.rand(16, 1, 10, 10) + label[:, None, None, None] * 0.4
    if step >= 110:
        image = torch.zeros_like(image)  # FAULT
    return image, label


torch.manual_seed(66)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 3)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(220):
    image, label = decode(step)
    loss = F.cross_entropy(model(image), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
