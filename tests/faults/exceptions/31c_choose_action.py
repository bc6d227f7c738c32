import torch

def choose(policy, observation):
    preferences = policy(observation)
    best = preferences.argmax(dim=-1)
    return best.item()

def rollout(steps):
    policy = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    counts = [0, 0, 0, 0]
    observation = torch.zeros(5, 2)
    for _ in range(steps):
        counts[choose(policy, observation)] += 1
        observation = observation + torch.randn(5, 2)
    return counts

print(rollout(6))
