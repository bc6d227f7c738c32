"""PPO-like updates: several epochs over each rollout, ratios clipped, advantages normalised.

family: healthy
steps: 640
tempts: loss_spike, zero_gradient, gradient_explosion
"""

import torch
from torch import nn
from torch.nn import functional as F


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.actor = nn.Linear(32, 3)
        self.critic = nn.Linear(32, 1)

    def forward(self, state):
        hidden = self.body(state)
        return torch.distributions.Categorical(logits=self.actor(hidden)), self.critic(hidden).squeeze(-1)


torch.manual_seed(54)
model = ActorCritic()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5)
for _ in range(40):
    state = torch.randn(128, 6)
    with torch.no_grad():
        policy, value = model(state)
        action = policy.sample()
        before = policy.log_prob(action)
        reward = (action == state[:, :3].argmax(-1)).float() + 0.5 * torch.randn(128)
        advantage = reward - value
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    for _ in range(4):
        for rows in torch.randperm(128).split(32):
            policy, value = model(state[rows])
            ratio = (policy.log_prob(action[rows]) - before[rows]).exp()
            gain = torch.min(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows]).mean()
            loss = -gain + 0.5 * F.mse_loss(value, reward[rows]) - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
print("last loss", loss.item())
