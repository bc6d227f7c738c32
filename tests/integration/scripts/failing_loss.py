"""Trains a model whose loss, made outside of it, takes the logarithm of nothing at step 5."""

import torch
from torch import nn

FLOOR = 0.0


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def train() -> None:
    torch.manual_seed(7)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0]), label_smoothing=0.1)
    for step in range(8):
        x = torch.randn(16, 4)
        share = torch.rand(16)
        share[3] = 0.0 if step == 5 else 0.5
        logits = model(x)
        loss = criterion(logits, x[:, :3].argmax(-1))
        loss = loss + (logits.std(-1) * torch.log(share + FLOOR)).mean()  # planted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train()
