import torch

def minibatches(X, y, n_total, size):
    order = torch.arange(n_total - 1, -1, -1)
    for start in range(0, n_total, size):
        pick = order[start:start + size]
        yield X[pick], y[pick]

def train():
    data, labels = torch.randn(100, 3), torch.randn(100, 1)
    train_x, train_y = data[:80], labels[:80]
    reg = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(reg.parameters(), lr=0.1)
    for xb, yb in minibatches(train_x, train_y, len(data), 20):
        opt.zero_grad()
        (reg(xb) - yb).pow(2).mean().backward()
        opt.step()

train()
