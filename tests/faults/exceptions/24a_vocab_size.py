import torch
import torch.nn as nn

text = "the cat sat on the mat and the dog sat on the rug".split()
vocab = {word: i + 1 for i, word in enumerate(sorted(set(text)))}

class BagOfWords(nn.Module):
    def __init__(self, n_words):
        super().__init__()
        self.embedding = nn.Embedding(n_words, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, ids):
        return self.out(self.embedding(ids).mean(0))

bow = BagOfWords(len(vocab))
ids = torch.tensor([vocab[w] for w in text])
print(vocab, bow(ids))
