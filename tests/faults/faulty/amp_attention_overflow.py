"""Attention scores without 1/sqrt(d) in float16 autocast overflow at every step from one batch on.

family: forward
kinds: nonfinite_loss, nonfinite_gradient, amp_overflow
step: 40
module: attention
"""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2)  # FAULT
        return torch.softmax(scores, dim=-1) @ self.v(x)  # ORIGIN


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = Attention(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.attention(x).mean(1))


def main():
    torch.manual_seed(34)
    model = Reader(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(100):
        x = torch.randn(8, 6, 32)
        if step >= 40:
            x = x * 400.0  # raw sensor units from here on
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), (x[:, 0, 0] > 0).long())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print("last loss", loss.item())


main()
