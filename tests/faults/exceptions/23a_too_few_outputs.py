import torch
from torch import nn

torch.manual_seed(0)
labels = torch.arange(13).repeat(3)
points = torch.randn(39, 4)
net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.1)

for epoch in range(2):
    loss = nn.functional.cross_entropy(net(points), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
