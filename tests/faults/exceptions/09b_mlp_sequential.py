import torch
from torch import nn

def build(n_features):
    return nn.Sequential(
        nn.Linear(n_features, 64),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 1),
    )

regressor = build(11)
opt = torch.optim.Adam(regressor.parameters())
table = torch.randn(20, 11)
price = torch.rand(20, 1)
loss = nn.functional.l1_loss(regressor(table), price)
loss.backward()
opt.step()
