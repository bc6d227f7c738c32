"""Trains a small character-level transformer on English text, with the probe attached in two lines.

    python demo_train.py                     # healthy, then one NaN at step 300, then healthy again
    python demo_train.py --fault none        # healthy to the end
    python demo_train.py --fault explode     # see the table

Faults are real: a bug in the model, in the data or in the loop. What each must show on the timeline:

    --fault     what goes wrong at --fault-step                                     event kind
    nan         a document of padding only meets an RMSNorm without epsilon         nonfinite_loss
    explode     a gradient-scaling trick gets a constant of 1000 instead of 1       gradient_explosion
    vanish      the same trick gets 1e-6                                            gradient_vanishing
    dead        a huge negative bias switches off every ReLU of one layer           zero_gradient
    spike       one batch comes from a corrupt shard: random characters             loss_spike
    exception   one batch has a character outside the vocabulary                    exception
    none        nothing                                                             (none)
"""

import argparse
import time
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

import probe

CONTEXT = 64
BATCH = 32
PADDING = 0


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width, heads, eps):
        super().__init__()
        self.norm1 = RMSNorm(width, eps)
        self.attention = Attention(width, heads)
        self.norm2 = RMSNorm(width, eps)
        self.mlp = MLP(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CharTransformer(nn.Module):
    """A GPT in miniature. Padding positions are zero vectors until the first attention."""

    def __init__(self, vocabulary, width=64, depth=4, heads=4, eps=1e-5):
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads, eps) for _ in range(depth))
        self.norm = RMSNorm(width, eps)
        self.head = nn.Linear(width, vocabulary)
        self.gradient_scale = 1.0

    def forward(self, tokens):
        x = self.characters(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = x * (tokens != PADDING).unsqueeze(-1)
        for index, block in enumerate(self.blocks):
            x = block(x)
            if index == 1:
                x = scale_gradient(x, self.gradient_scale)
        return self.head(self.norm(x))


def scale_gradient(x, factor):
    """The identity in forward; multiplies the gradient by `factor` in backward."""
    return x * factor + x.detach() * (1 - factor)


def load_text():
    """Python's own language reference: real English text that is on every machine."""
    text = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(text))
    index = {character: number + 1 for number, character in enumerate(characters)}
    return torch.tensor([index[character] for character in text]), len(characters) + 1


def build_model():
    """For `dashboard replay BUNDLE --entry demo_train:build_model`; the bundle brings weights and eps."""
    return CharTransformer(load_text()[1])


def sample_batch(data, generator):
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator)
    rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def plant_fault(fault, model, tokens, targets, vocabulary):
    """Return the batch of the faulty step; faults of the model stay in it from this step on."""
    if fault == "nan":
        tokens = tokens.clone()
        tokens[0] = PADDING
    elif fault == "spike":
        tokens = torch.randint(1, vocabulary, tokens.shape)
        targets = torch.randint(1, vocabulary, targets.shape)
    elif fault == "exception":
        tokens = tokens.clone()
        tokens[0, 5] = vocabulary + 7
    elif fault == "explode":
        model.gradient_scale = 1000.0
    elif fault == "vanish":
        model.gradient_scale = 1e-6
    elif fault == "dead":
        with torch.no_grad():
            model.blocks[2].mlp.up.bias.fill_(-1e4)
    return tokens, targets


def parse_arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    faults = ["none", "nan", "explode", "vanish", "dead", "spike", "exception"]
    parser.add_argument("--fault", choices=faults, default="nan")
    parser.add_argument("--fault-step", type=int, default=300, metavar="N")
    parser.add_argument("--steps", type=int, default=900, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.set_num_threads(1)  # on a busy machine several threads spin for each other: a tenth of the speed
    torch.manual_seed(args.seed)
    data, vocabulary = load_text()
    model = CharTransformer(vocabulary, eps=0.0 if args.fault == "nan" else 1e-5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps, eta_min=1e-4)
    batches = torch.Generator().manual_seed(args.seed)
    run = probe.watch(model, optimizer, name="demo_train.py")

    started = time.perf_counter()
    for step in range(args.steps):
        tokens, targets = sample_batch(data, batches)
        if step == args.fault_step:
            tokens, targets = plant_fault(args.fault, model, tokens, targets, vocabulary)
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if torch.isfinite(norm):  # a bad batch costs one update, not the run
            optimizer.step()
        schedule.step()
        run.log(lr=schedule.get_last_lr()[0])
        if step % 50 == 0 or step == args.steps - 1:
            rate = (step + 1) / (time.perf_counter() - started)
            print(f"step {step:4d}  loss {loss.item():.3f}  {rate:.1f} steps/s", flush=True)


if __name__ == "__main__":
    main()
