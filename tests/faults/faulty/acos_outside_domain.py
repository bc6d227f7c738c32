"""Geodesic rotation loss: rounding puts the cosine of two equal rotations just above 1.

family: forward
kinds: nonfinite_loss
step: 50
module: outside
"""

import torch
from torch import nn
from torch.nn import functional as F


def to_rotation(six):
    a, b = six[:, :3], six[:, 3:]
    x = F.normalize(a, dim=-1)
    y = F.normalize(b - (x * b).sum(-1, keepdim=True) * x, dim=-1)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)


def geodesic(first, second):
    trace = (first.transpose(1, 2) @ second).diagonal(dim1=1, dim2=2).sum(-1)
    return torch.acos((trace - 1) / 2).mean()  # FAULT


def main():
    torch.manual_seed(13)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(100):
        pose = torch.randn(16, 6)
        prediction = to_rotation(pose + 0.3 * model(pose))
        target = to_rotation(pose + 0.3 * torch.randn_like(pose))
        if step == 50:
            target[4] = prediction[4].detach() * (1 + 1e-6)  # a relabelled frame, refined by the model itself
        loss = geodesic(prediction, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
