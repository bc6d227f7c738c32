import torch
from torch import nn

rnn = nn.GRU(input_size=3, hidden_size=8, batch_first=True)
readout = nn.Linear(8, 1)
params = list(rnn.parameters()) + list(readout.parameters())
optimizer = torch.optim.Adam(params, lr=0.01)
series = torch.randn(4, 30, 3)

hidden = torch.zeros(1, 4, 8)
for start in range(0, 30, 10):
    chunk = series[:, start:start + 10]
    out, hidden = rnn(chunk, hidden)
    loss = readout(out).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
