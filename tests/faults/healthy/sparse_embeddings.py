"""A recommender with sparse embedding gradients: most rows have none at a step.

family: healthy
steps: 500
tempts: zero_gradient, parameter_not_updated
"""

import torch
from torch import nn
from torch.nn import functional as F


class Recommender(nn.Module):
    def __init__(self, users, items, width):
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=True)
        self.items = nn.Embedding(items, width, sparse=True)
        self.bias = nn.Embedding(items, 1, sparse=True)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1) + self.bias(item).squeeze(-1)


torch.manual_seed(3)
truth_users, truth_items = torch.randn(2000, 4), torch.randn(500, 4)
model = Recommender(2000, 500, 8)
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.02)
for _ in range(500):
    user, item = torch.randint(0, 2000, (128,)), torch.randint(0, 500, (128,))
    rating = ((truth_users[user] * truth_items[item]).sum(-1) > 0).float()
    loss = F.binary_cross_entropy_with_logits(model(user, item), rating)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("last loss", loss.item())
