import torch
import torch.nn as nn

class Transfer(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(10, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(torch.relu(self.backbone(x)))

net = Transfer()
warmup = torch.optim.SGD(net.head.parameters(), lr=0.1, momentum=0.9)
net(torch.randn(6, 10)).mean().backward()
warmup.step()
state = warmup.state_dict()
full = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
full.load_state_dict(state)
