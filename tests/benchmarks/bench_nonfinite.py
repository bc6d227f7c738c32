"""Prints what a watched step costs in a run that stays non-finite, beside a healthy one.

    python tests/benchmarks/bench_nonfinite.py [--cases mlp gpt] [--rounds 3]

Per case, processes of one training each come in turn: plain and watched, healthy and with one weight set to
NaN at step 200. Of the 400 steps that follow, from `SETTLED` on, in blocks of 50: CPU time of the training
thread and of the whole process (the recorder's thread is a part of it, the helper is not), per step: medians
of the blocks of all rounds, with their quartiles. *probe* is the watched run's less the plain one's, *ratio*
the watched run that stays non-finite over the watched healthy one: at most 1.1. Below, what the first steps
after the NaN cost: the one with the event, its replay and its bundle, and those straight after.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

BAD_AT, SETTLED, STEPS, BLOCK = 200, 300, 700, 50
FIRST = 6
"""So many steps from the first NaN on are shown one by one."""
Loop = Callable[[], Iterator[None]]


class Net(nn.Sequential):
    """Some linear layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__(
            nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Of random numbers."""
    while True:
        yield torch.randn(32, 32), torch.randint(4, (32,))


def supervised(
    model: nn.Module, inputs: Callable[[], Tensor], *, clip: float | None = None
) -> tuple[nn.Module, Loop]:
    """The plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loop() -> Iterator[None]:
        while True:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs()), torch.randint(4, (32,)))
            loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            yield

    return model, loop


def mlp() -> tuple[nn.Module, Loop]:
    """Three linear layers."""
    return supervised(Net(), lambda: torch.randn(32, 32))


def clipped() -> tuple[nn.Module, Loop]:
    """The same, clipped."""
    return supervised(Net(), lambda: torch.randn(32, 32), clip=1.0)


def conv() -> tuple[nn.Module, Loop]:
    """Two convolutions with batch norm."""
    parts = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()]
    return supervised(nn.Sequential(*parts, nn.Linear(8 * 64, 4)), lambda: torch.randn(32, 3, 12, 12))


def gpt() -> tuple[nn.Module, Loop]:
    """Two layers of a transformer."""
    from workloads import Gpt

    model = Gpt(width=32, heads=2, layers=2, vocabulary=32, context=16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loop() -> Iterator[None]:
        while True:
            ids = torch.randint(32, (4, 17))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    return model, loop


def accumulating() -> tuple[nn.Module, Loop]:
    """Four micro-steps an update."""
    model, data = Net(), batches()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loop() -> Iterator[None]:
        while True:
            for _ in range(4):
                inputs, targets = next(data)
                (F.cross_entropy(model(inputs), targets) / 4).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    return model, loop


def scaler() -> tuple[nn.Module, Loop]:
    """A GradScaler, which skips each update once gradients are NaN."""
    model, data = Net(), batches()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def loop() -> Iterator[None]:
        for inputs, targets in data:
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
            scaler.step(optimizer)
            scaler.update()
            yield

    return model, loop


def skipping() -> tuple[nn.Module, Loop]:
    """The script leaves out the backward of a loss that is not finite."""
    model, data = Net(), batches()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loop() -> Iterator[None]:
        for inputs, targets in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            if not torch.isfinite(loss):
                yield
                continue
            loss.backward()
            optimizer.step()
            yield

    return model, loop


def by_norm() -> tuple[nn.Module, Loop]:
    """The script leaves out the update whose gradients are not finite."""
    model, data = Net(), batches()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def loop() -> Iterator[None]:
        for inputs, targets in data:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                optimizer.step()
            yield

    return model, loop


def huggingface() -> tuple[nn.Module, Loop]:
    """The loop of transformers' Trainer, followed by a callback."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.net(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model = Classifier()
    rows = [{"x": torch.randn(32), "labels": torch.tensor(i % 4)} for i in range(32 * 8)]

    class Steps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            on_step[0]()

    on_step: list[Callable[[], None]] = []
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        max_steps=STEPS + 1,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[Steps()])

    def loop() -> Iterator[None]:
        # The trainer owns the loop: here it calls what is usually between two steps.
        raise NotImplementedError

    loop.trainer, loop.on_step = trainer, on_step  # type: ignore[attr-defined]
    return model, loop


CASES = {
    "mlp": mlp,
    "clipped": clipped,
    "conv": conv,
    "gpt": gpt,
    "accumulating": accumulating,
    "scaler": scaler,
    "skipping": skipping,
    "by norm": by_norm,
    "huggingface": huggingface,
}


def train(case: str, *, is_watched: bool, is_bad: bool) -> None:
    """One training; prints its times."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loop = CASES[case]()
    if is_watched:
        import probe

        probe.watch(model)
    thread: list[float] = []
    process: list[float] = []

    def between() -> None:
        thread.append(time.thread_time())
        process.append(time.process_time())
        if is_bad and len(thread) == BAD_AT:
            with torch.no_grad():
                next(model.parameters()).view(-1)[0] = float("nan")

    if hasattr(loop, "trainer"):
        loop.on_step.append(between)
        loop.trainer.train()
    else:
        steps = loop()
        for _ in range(STEPS + 1):
            between()
            next(steps)
    print(json.dumps({"thread": thread, "process": process}), flush=True)
    os._exit(0)


def measure(case: str, kind: str, root: str) -> dict[str, list[float]]:
    """Times of one training, in a process of its own."""
    environment = {
        **os.environ,
        "NANSCOPE_SPOOL": str(Path(root) / kind),
        "OMP_NUM_THREADS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    command = [sys.executable, __file__, "--child", case, kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    times: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return times


def per_step_ms(times: list[float]) -> list[float]:
    """Means of the settled blocks."""
    starts = range(SETTLED, STEPS, BLOCK)
    return [(times[start + BLOCK] - times[start]) / BLOCK * 1e3 for start in starts]


def show(case: str, *, rounds: int) -> None:
    """Measure and print one case."""
    kinds = ("plain healthy", "plain bad", "watched healthy", "watched bad")
    blocks: dict[tuple[str, str], list[float]] = {}
    first: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:  # a helper may still write
            for kind in kinds:
                times = measure(case, kind, root)
                for clock in ("thread", "process"):
                    blocks.setdefault((kind, clock), []).extend(per_step_ms(times[clock]))
                steps = times["process"][BAD_AT - 1 : BAD_AT + FIRST]
                first[kind].append([(b - a) * 1e3 for a, b in pairwise(steps)])
    print(f"\n{case}")
    for clock in ("thread", "process"):
        middle = {kind: statistics.median(blocks[kind, clock]) for kind in kinds}
        for kind in kinds:
            low, _, high = statistics.quantiles(blocks[kind, clock], n=4)
            print(f"  {clock:8} {kind:16} {middle[kind]:7.3f} ms ({low:.3f} to {high:.3f})")
        healthy = middle["watched healthy"] - middle["plain healthy"]
        bad = middle["watched bad"] - middle["plain bad"]
        ratio = middle["watched bad"] / middle["watched healthy"]
        print(f"  {clock:8} probe {healthy:.3f} -> {bad:.3f} ms, ratio {ratio:.2f}", flush=True)
    for kind in kinds[2:]:
        columns = [statistics.median(column) for column in zip(*first[kind], strict=True)]
        print(f"  from the NaN on, {kind}: {', '.join(f'{one:.2f}' for one in columns)} ms")


def main() -> None:
    """Parse, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        case, kind = arguments.child
        train(case, is_watched=kind.startswith("watched"), is_bad=kind.endswith("bad"))
    for case in arguments.cases:
        show(case, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
