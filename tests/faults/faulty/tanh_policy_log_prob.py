"""Soft actor-critic corrects for tanh with log(1 - a^2); a saturated action gives log(0).

family: forward
kinds: nonfinite_loss
step: 58
module: ""
"""

import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self, observation, action):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observation, 64), nn.ReLU())
        self.mean = nn.Linear(64, action)
        self.log_std = nn.Linear(64, action)

    def forward(self, observation):
        hidden = self.body(observation)
        mean, std = self.mean(hidden), self.log_std(hidden).clamp(-5, 2).exp()
        raw = mean + std * torch.randn_like(std)
        action = torch.tanh(raw)
        gaussian = -0.5 * ((raw - mean) / std).square() - std.log()
        correction = torch.log(1 - action.square())  # FAULT
        return action, (gaussian - correction).sum(-1)


def main():
    torch.manual_seed(18)
    policy = Policy(5, 2)
    critic = nn.Sequential(nn.Linear(7, 64), nn.ReLU(), nn.Linear(64, 1)).requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for step in range(110):
        observation = torch.randn(32, 5)
        if step == 58:
            observation[7] = 150.0  # the simulator blew up
        action, log_probability = policy(observation)
        value = critic(torch.cat([observation, action], dim=-1)).squeeze(-1)
        loss = (0.05 * log_probability - value).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last loss", loss.item())


main()
