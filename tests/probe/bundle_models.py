"""Models whose steps go into bundles; a fresh process on another machine builds them from this file alone."""

import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Planted(nn.Module):
    """Batch norm, dropout, and a square root that leaves its domain where an input says so."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        x = self.drop(self.norm(self.enter(x)))
        if shift:
            x = torch.sqrt(x - shift)  # planted
        return self.head(x)


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


class WithLoss(nn.Module):
    """Returns its loss, as the models of Hugging Face do; `labels` come by keyword, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, batch: dict[str, Tensor], *, scale: float) -> Output:
        logits = self.body(batch["x"])
        return Output(F.cross_entropy(logits * scale, batch["labels"]), logits)


class Sentence(nn.Module):
    """A tied embedding and a packed LSTM with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 6, batch_first=True, num_layers=2, dropout=0.2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.words(words), lengths, batch_first=True)
        return self.head(self.lstm(packed)[0].data)


class Carrying(nn.Module):
    """Reads and changes a buffer, a tensor attribute and a number, and draws from `random`."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
        self.register_buffer("mean", torch.ones(4))
        self.hidden, self.calls = torch.zeros(6, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.cell(x, self.hidden.clone()) * self.mean.clone() / self.calls * random.uniform(0.5, 1.0)
        self.mean.mul_(0.5).add_(y.detach().mean(0))
        self.hidden = y.detach()
        return y


class Encoder(nn.Module):
    """What autocast concerns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x, src_mask=mask)


def build_planted() -> nn.Module:
    return Planted()


def build_wider() -> nn.Module:
    return Planted(width=9)


def build_other() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8))


def build_number() -> int:
    return 3


def build_nothing() -> nn.Module:
    raise KeyError("no such checkpoint")


def build_with_a_library() -> nn.Module:
    import nowhere  # type: ignore[import-not-found]

    return nowhere.Model()


def build_attribute() -> nn.Module:
    raise AttributeError("no such thing")


def build_on_meta() -> nn.Module:
    with torch.device("meta"):
        return Planted()


def build_several() -> tuple[nn.Module, str]:
    return Planted(), "tokenizer"
