import torch
import torch.nn as nn

class RiskModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(3, 1)

    def forward(self, x):
        return torch.sigmoid(self.score(x)).squeeze(1)

records = torch.rand(10, 3)
records[:, 1] = 1.0
scaled = (records - records.mean(0)) / records.std(0)
defaulted = torch.randint(0, 2, (10,)).float()
risk = RiskModel()
loss = nn.BCELoss()(risk(scaled), defaulted)
loss.backward()
