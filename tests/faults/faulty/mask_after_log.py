"""Per-token loss takes the log of a probability that the copy mechanism set to 0, and masks it afterwards.

family: forward
kinds: nonfinite_loss
step: 55
module: outside
"""

import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, allowed):
        hidden = torch.tanh(self.body(self.embedding(tokens)))
        probabilities = torch.softmax(self.head(hidden), dim=-1) * allowed[:, None, :]
        return probabilities / probabilities.sum(-1, keepdim=True)


def token_loss(probabilities, targets, weight):
    picked = probabilities.gather(-1, targets[..., None]).squeeze(-1)
    per_token = -torch.log(picked)  # FAULT
    return (per_token * weight).sum() / weight.sum()  # ORIGIN


torch.manual_seed(10)
model = Generator(25, 32)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(110):
    tokens = torch.randint(0, 25, (8, 9))
    targets = (tokens + 1) % 25
    allowed, weight = torch.ones(8, 25), torch.ones(8, 9)
    weight[:, 7:] = 0
    if step == 55:
        allowed[3, targets[3, 8]] = 0.0
        weight[3] = (targets[3] != targets[3, 8]).float()
    loss = token_loss(model(tokens, allowed), targets, weight)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
