import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(400, 5)

    def forward(self, x):
        x = F.relu(self.conv(x))
        x = x.view(-1, 400)
        return self.fc(x)

net = Net()
pictures = torch.randn(8, 3, 12, 12)
kinds = torch.randint(0, 5, (8,))
F.cross_entropy(net(pictures), kinds).backward()
