import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 12)
        self.bn = nn.BatchNorm1d(12)
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        return self.out(torch.relu(self.bn(self.fc(x))))

net = Net()
opt = torch.optim.Adam(net.parameters())
for x, y in DataLoader(TensorDataset(torch.randn(33, 5), torch.randn(33, 1)), batch_size=16):
    opt.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    opt.step()
