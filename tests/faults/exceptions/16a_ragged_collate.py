import torch
from torch.utils.data import Dataset, DataLoader

class Sentences(Dataset):
    def __init__(self):
        self.items = [torch.arange(n) for n in (5, 5, 5, 6, 8, 5, 5, 7)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]

loader = DataLoader(Sentences(), batch_size=4, num_workers=0)
embedding = torch.nn.Embedding(10, 3)
for tokens in loader:
    print(embedding(tokens).mean())
