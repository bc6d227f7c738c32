import torch
from torch.nn.utils.rnn import pad_sequence

def batches(baskets, size):
    for i in range(0, len(baskets), size):
        chunk = [torch.tensor(b) for b in baskets[i:i + size]]
        yield pad_sequence(chunk, batch_first=True, padding_value=-1)

def train(baskets):
    items = torch.nn.Embedding(10, 4)
    opt = torch.optim.SGD(items.parameters(), lr=0.1)
    for padded in batches(baskets, 2):
        loss = items(padded).sum(1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

train([[1, 2, 3], [4, 5, 6], [7], [8, 9, 0]])
