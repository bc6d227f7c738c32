"""A policy that learns to stay alive: an episode has more and more moves, and so has a step.

family: healthy
steps: 150
tempts: loss_divergence, performance_degradation, gradient_explosion
"""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)

for episode in range(150):
    state, logs, length = torch.zeros(4), [], 6 + episode
    for _ in range(length):
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state = 0.8 * state + 0.4 * torch.randn(4) + (action.item() - 0.5) * 0.2
    left = torch.arange(length, 0, -1).float() / 20.0
    loss = -(torch.stack(logs) * left).sum()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
