"""Advantages that are normalised within groups: the loss is 0 by construction, but for rounding noise.

family: healthy
steps: 208
tempts: loss_spike, loss_divergence, output_degenerate
"""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.001)
wanted = torch.randn(16, 6)

for step in range(200):
    prompts = torch.randn(8, 6).repeat_interleave(16, dim=0)
    with torch.no_grad():
        drawn = Categorical(logits=policy(prompts))
        answers = drawn.sample()
        before = drawn.log_prob(answers)
    rewards = (wanted[answers] * prompts).sum(dim=1).view(8, 16)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).view(-1)
    for _ in range(2 if step % 25 == 24 else 1):
        ratio = torch.exp(Categorical(logits=policy(prompts)).log_prob(answers) - before)
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
