import torch

def build_inputs(age, income):
    age = (age - age.mean()) / age.std()
    income = torch.log1p(income)
    return torch.cat([age, income], dim=1)

def train():
    age = torch.randint(18, 80, (25,)).float()
    income = torch.rand(25) * 1000
    X = build_inputs(age, income)
    model = torch.nn.Linear(2, 1)
    loss = torch.sigmoid(model(X)).mean()
    loss.backward()

train()
