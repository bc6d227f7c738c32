"""Draws augmentations until one keeps the label visible; for a blank image the loop has no end.

family: process
kinds: hang
step: 90
ends: killed
limit_s: 30
"""

import torch
from torch import nn
from torch.nn import functional as F


def random_crop(image, size):
    while True:
        top, left = torch.randint(0, image.shape[-1] - size, (2,)).tolist()  # FAULT
        crop = image[:, top : top + size, left : left + size]  # FAULT
        if crop.sum() > 0.5:  # FAULT
            return crop


torch.manual_seed(90)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    images = torch.rand(8, 1, 12, 12)
    if step == 90:
        images[3] = 0.0
    crops = torch.stack([random_crop(image, 8) for image in images])
    label = (crops.mean((1, 2, 3)) > 0.5).long()
    loss = F.cross_entropy(model(crops), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
