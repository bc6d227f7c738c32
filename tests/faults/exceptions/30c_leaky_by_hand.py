import torch

def leaky(z):
    if z > 0:
        return z
    return 0.01 * z

def forward(inputs, w1, w2):
    return leaky(inputs @ w1) @ w2

def train():
    w1 = torch.randn(3, 5, requires_grad=True)
    w2 = torch.randn(5, 1, requires_grad=True)
    opt = torch.optim.SGD([w1, w2], lr=0.01)
    for _ in range(4):
        opt.zero_grad()
        forward(torch.randn(8, 3), w1, w2).pow(2).mean().backward()
        opt.step()

train()
