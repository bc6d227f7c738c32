import torch

def train(epochs):
    coef = torch.ones(5, 1, requires_grad=True)
    features = torch.randn(40, 5)
    target = features.sum(1, keepdim=True)
    penalty = 0.01 * (coef ** 2).sum()
    opt = torch.optim.SGD([coef], lr=0.0)
    for epoch in range(epochs):
        residual = features @ coef - target
        cost = (residual ** 2).mean() + penalty
        opt.zero_grad()
        cost.backward()
        opt.step()
    return coef

train(3)
