import torch

def train(steps=5):
    scores = torch.zeros(7, requires_grad=True)
    values = torch.arange(7.0)
    optimizer = torch.optim.SGD([scores], lr=0.5)
    for _ in range(steps):
        weights = torch.exp(scores)
        weights[0] = 0.0
        mixed = (weights * values).sum() / weights.sum()
        objective = (mixed - 4.0) ** 2
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
    return scores

print(train())
