import torch
import torch.nn.functional as F

def load_clicks(n):
    users = torch.randn(n, 5)
    clicked = (users[:, 0] > 0).double()
    return users, clicked

def train():
    users, clicked = load_clicks(20)
    ctr = torch.nn.Linear(5, 1)
    opt = torch.optim.Adagrad(ctr.parameters(), lr=0.1)
    for _ in range(3):
        p = torch.sigmoid(ctr(users)).squeeze(1)
        loss = F.binary_cross_entropy(p, clicked)
        opt.zero_grad()
        loss.backward()
        opt.step()

train()
