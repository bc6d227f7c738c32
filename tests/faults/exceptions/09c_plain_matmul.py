import torch

def add_intercept(design):
    return torch.cat([torch.ones(design.shape[0], 1), design], dim=1)

def train():
    design = torch.randn(50, 6)
    response = torch.randn(50, 1)
    theta = torch.zeros(7, 1, requires_grad=True)
    for _ in range(3):
        fitted = design @ theta
        rss = (fitted - response).pow(2).sum()
        rss.backward()
        with torch.no_grad():
            theta -= 0.01 * theta.grad
            theta.grad = None
    return theta

print(train())
