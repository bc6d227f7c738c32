import torch
import torch.nn as nn
import torch.nn.functional as F

class VoteModel(nn.Module):
    def __init__(self, n_options):
        super().__init__()
        self.calibrate = nn.Linear(n_options, n_options)

    def forward(self, votes):
        prior = F.softmax(votes, dim=1)
        return self.calibrate(prior)

votes = torch.tensor([[3, 1, 0], [2, 2, 5], [0, 4, 1]])
model = VoteModel(3)
loss = F.cross_entropy(model(votes), torch.tensor([0, 2, 1]))
loss.backward()
