"""DQN with a growing but bounded replay buffer and a target network: the loss rises as values do.

family: healthy
steps: 700
tempts: memory_leak, loss_divergence, loss_spike
"""

import copy
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F


class Corridor:
    def __init__(self):
        self.position = 0

    def step(self, action):
        self.position = min(max(self.position + (1 if action else -1), 0), 9)
        done = self.position == 9
        reward = 10.0 if done else -0.1
        if done:
            self.position = 0
        return self.position, reward, done


def encode(position):
    return F.one_hot(torch.tensor(position), 10).float()


torch.manual_seed(7)
random.seed(7)
network = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 2))
target = copy.deepcopy(network)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
memory = deque(maxlen=2000)
world, state = Corridor(), encode(0)
for step in range(700):
    for _ in range(2):
        epsilon = max(0.1, 1 - step / 400)
        with torch.no_grad():
            action = random.randrange(2) if random.random() < epsilon else int(network(state).argmax())
        position, reward, done = world.step(action)
        memory.append((state, action, reward, encode(position), float(done)))
        state = encode(position)
    states, actions, rewards, following, ends = zip(*random.choices(memory, k=32), strict=True)
    with torch.no_grad():
        best = target(torch.stack(following)).amax(-1)
        wanted = torch.tensor(rewards) + 0.95 * (1 - torch.tensor(ends)) * best
    value = network(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(value, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        target.load_state_dict(network.state_dict())
print("last loss", loss.item())
