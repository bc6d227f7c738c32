import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

def soft_targets(digit, n):
    onehot = F.one_hot(digit, n).float()
    return onehot * 0.9 + 0.1 / n

def train(loader):
    lin = torch.nn.Linear(16, 10)
    opt = torch.optim.Adam(lin.parameters())
    for image, digit in loader:
        loss = F.cross_entropy(lin(image), soft_targets(digit, 10))
        opt.zero_grad()
        loss.backward()
        opt.step()

digits = torch.floor(torch.rand(12) * 10)
train(DataLoader(TensorDataset(torch.rand(12, 16), digits), batch_size=4))
