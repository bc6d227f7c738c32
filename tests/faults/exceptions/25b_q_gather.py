import torch
import torch.nn as nn
import torch.nn.functional as F

class QNet(nn.Module):
    def __init__(self, n_obs, n_act):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_obs, 16), nn.ReLU(), nn.Linear(16, n_act))

    def forward(self, obs):
        return self.net(obs)

qnet = QNet(4, 3)
obs = torch.randn(6, 4)
actions = torch.tensor([0, 1, 2, 3, 1, 0])
q_taken = qnet(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
F.smooth_l1_loss(q_taken, torch.zeros(6)).backward()
