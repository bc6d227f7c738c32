"""Masked loss divides by the count of valid pixels; one depth map has none.

family: forward
kinds: nonfinite_loss
step: 65
module: outside
"""

import torch
from torch import nn


class MaskedL1(nn.Module):
    def forward(self, prediction, depth, valid):
        error = (prediction - depth).abs() * valid
        return error.sum() / valid.sum()  # FAULT


def depth_maps(step):
    image = torch.rand(1, 3, 16, 16)
    depth = image.mean(1, keepdim=True) * 10
    valid = (torch.rand_like(depth) > 0.3).float()
    if step == 65:
        valid.zero_()  # the lidar missed the frame
    return image, depth, valid


def main():
    torch.manual_seed(9)
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    criterion = MaskedL1()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(120):
        image, depth, valid = depth_maps(step)
        loss = criterion(model(image), depth, valid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
