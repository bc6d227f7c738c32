"""Trains a small model with accumulation, dropout and bf16 autocast; its step 5 goes wrong."""

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.drop = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        x = self.drop(self.norm(self.enter(x)))
        if shift:
            x = torch.sqrt(x - shift)  # planted
        return self.head(x)


def build_model() -> nn.Module:
    return Net()


def main() -> None:
    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(6):
        for micro_step in range(2):
            fails = step == 5 and micro_step == 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(torch.randn(16, 4), 1.0 if fails else 0.0)
            (output.float().pow(2).mean() / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
