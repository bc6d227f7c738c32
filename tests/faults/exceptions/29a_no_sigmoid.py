import torch
from torch import nn

torch.manual_seed(0)
spam_filter = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
loss_fn = nn.BCELoss()
optimizer = torch.optim.Adam(spam_filter.parameters())

for epoch in range(3):
    mails = torch.randn(32, 8)
    is_spam = (mails[:, :1] > 0).float()
    loss = loss_fn(spam_filter(mails), is_spam)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
