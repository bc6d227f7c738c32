import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

class IrisNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 10)
        self.species = nn.Linear(10, 3)

    def forward(self, petals):
        return F.log_softmax(self.species(F.relu(self.hidden(petals))), dim=1)

iris = IrisNet()
species = torch.tensor(np.random.randint(0, 3, 15).astype(np.int32))
petals = torch.rand(15, 4)
F.nll_loss(iris(petals), species).backward()
