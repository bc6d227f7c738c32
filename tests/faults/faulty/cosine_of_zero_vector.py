"""Contrastive training divides embeddings by their norm by hand; an empty product description is all zeros.

family: forward
kinds: nonfinite_loss
step: 95
module: ""
"""

import torch
from torch import nn
from torch.nn import functional as F


class TextEncoder(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, padding_idx=0)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, tokens):
        vector = self.project(self.table(tokens).sum(dim=1))
        return vector / vector.norm(dim=-1, keepdim=True)  # FAULT


def pairs(count, vocabulary):
    first = torch.randint(1, vocabulary, (count, 6))
    second = first.clone()
    second[:, 3:] = torch.randint(1, vocabulary, (count, 3))
    return first, second


def main():
    torch.manual_seed(11)
    model = TextEncoder(60, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(140):
        first, second = pairs(24, 60)
        if step == 95:
            second[11] = 0
        similarity = model(first) @ model(second).T / 0.1
        loss = F.cross_entropy(similarity, torch.arange(24))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
