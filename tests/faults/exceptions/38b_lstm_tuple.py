import torch
import torch.nn as nn

class Sentiment(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 6)
        self.lstm = nn.LSTM(6, 10, batch_first=True)
        self.head = nn.Linear(10, 2)

    def forward(self, ids):
        memory = self.lstm(self.emb(ids))
        return self.head(memory)

model = Sentiment()
scores = model(torch.randint(0, 30, (4, 7)))
scores.sum().backward()
