import torch
import torch.nn as nn
import torch.nn.functional as F

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 4, stride=2)
        self.conv2 = nn.Conv2d(8, 8, 3)
        self.q = nn.Linear(8, 2)

    def forward(self, state):
        h = F.relu(self.conv1(state)).flatten(1)
        h = F.relu(self.conv2(h))
        return self.q(h.mean(dim=(2, 3)))

critic = Critic()
q_values = critic(torch.rand(2, 4, 20, 20))
q_values.max().backward()
