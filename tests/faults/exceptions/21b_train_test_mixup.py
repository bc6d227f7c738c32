import torch
from torch import nn

X = torch.randn(100, 4)
y = (X.sum(dim=1) > 0).long()
X_train, X_test = X[:70], X[70:]
y_train, y_test = y[:70], y[70:]

logreg = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.LBFGS(logreg.parameters(), max_iter=3)

def closure():
    optimizer.zero_grad()
    loss = criterion(logreg(X_train), y_train)
    loss.backward()
    return loss

optimizer.step(closure)
print("test loss", criterion(logreg(X_test), y_train).item())
