"""Policy gradient on a noisy bandit with contexts: the loss changes sign, its size says nothing.

family: healthy
steps: 600
tempts: loss_spike, loss_divergence, gradient_explosion
"""

import torch
from torch import nn

torch.manual_seed(6)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
baseline = 0.0
for _ in range(600):
    state = torch.randn(16, 6)
    choice = torch.distributions.Categorical(logits=policy(state))
    action = choice.sample()
    reward = (action == state[:, :4].argmax(-1)).float() * 10 + torch.randn(16) * 3
    loss = -(choice.log_prob(action) * (reward - baseline)).mean() - 0.01 * choice.entropy().mean()
    baseline = 0.95 * baseline + 0.05 * reward.mean().item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("baseline", baseline)
