"""A model whose parts the loop calls, next to a frozen teacher; prints its losses."""

import torch
from torch import Tensor, nn


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, 8)
        self.decoder = nn.Linear(8, 4)


class Trainer:
    def __init__(self) -> None:
        self.model = Translator()
        self.teacher = nn.Linear(4, 4).requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch: Tensor) -> float:
        self.optimizer.zero_grad()
        target = self.teacher(batch)
        loss = (self.model.decoder(self.model.encoder(batch)) - target).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()


torch.manual_seed(0)
trainer = Trainer()
for _ in range(4):
    print(repr(trainer.step(torch.randn(3, 4))))
