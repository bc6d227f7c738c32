import torch
from torch import nn

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Linear(2, 1)
opt_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-3)

for step in range(3):
    obs = torch.randn(8, 4)
    value = critic(actor(obs))
    critic_loss = (value - 1).pow(2).mean()
    actor_loss = -value.mean()
    opt_critic.zero_grad()
    critic_loss.backward(retain_graph=True)
    opt_critic.step()
    opt_actor.zero_grad()
    actor_loss.backward()
    opt_actor.step()
