import torch

def minimise(func, start, lr=0.1, steps=20):
    point = torch.tensor(start, requires_grad=True)
    opt = torch.optim.SGD([point], lr=lr)
    for _ in range(steps):
        opt.zero_grad()
        func(point).backward()
        opt.step()
    return point.detach()

def bowl(p):
    return (p[0] - 3) ** 2 + 2 * (p[1] + 1) ** 2

print(minimise(bowl, [0, 0]))
