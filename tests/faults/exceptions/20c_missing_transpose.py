import torch

def train(signal, target):
    rnn = torch.nn.RNN(3, 7, batch_first=True)
    read = torch.nn.Linear(7, 1)
    opt = torch.optim.Adam([*rnn.parameters(), *read.parameters()])
    for _ in range(3):
        _, last = rnn(signal)
        loss = (read(last[0]) - target).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

signal = torch.randn(16, 3, 50)
target = signal.mean(dim=(1, 2)).unsqueeze(1)
train(signal, target)
