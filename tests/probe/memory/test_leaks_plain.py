"""Containers of plain Python objects that grow without end, and the healthy ones that look like them."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from patient_watch import EveryStep, patient_watch
from torch.utils.data import Dataset

from probe.memory import leaks
from probe.memory.heap_meter import heap_reader
from probe.memory.leak_reports import MemoryIncident

STEPS = 400
pytestmark = [
    pytest.mark.fresh_process,
    pytest.mark.skipif(heap_reader() is None, reason="malloc does not tell what is in use"),
    pytest.mark.usefixtures("one_thread"),
]


class Loop:
    """Steps of a training, and what its watch has found."""

    def __init__(self) -> None:
        self.watch = patient_watch(object_pacer=EveryStep())
        self.found: list[MemoryIncident] = []
        self.model = torch.nn.Linear(8, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def steps(self, count: int = STEPS) -> Iterator[int]:
        """Train a step before each number, and have it followed after the loop's body."""
        for number in range(count):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 8)).square().mean().backward()
            self.optimizer.step()
            yield number
            self.found += self.watch.follow(number, sys._getframe(1))


@pytest.fixture
def loop() -> Loop:
    torch.manual_seed(0)
    return Loop()


def numbers(count: int, start: int) -> list[float]:
    """So many objects that nothing else has."""
    return [start + index / 7 for index in range(count)]


def leaks_dict_of_dicts_of_numbers(loop: Loop) -> str:
    stats: dict[int, dict[str, dict[int, float]]] = {}
    for number in loop.steps():
        layers = {f"layer{layer}": dict(enumerate(numbers(100, number))) for layer in range(20)}
        stats[number] = layers  # grows
    return "stats"


def leaks_list_of_dicts(loop: Loop) -> str:
    rows: list[dict[str, float]] = []
    for number in loop.steps():
        for sample in range(64):
            row = {f"n{index}": value for index, value in enumerate(numbers(30, sample + number))}
            rows.append(row)  # grows
    return "rows"


def leaks_defaultdict_of_lists_of_floats(loop: Loop) -> str:
    history: defaultdict[str, list[float]] = defaultdict(list)
    for number in loop.steps():
        for layer in range(10):
            history[f"weight{layer}"].extend(numbers(300, number))  # grows
    return "history[...]"


def leaks_many_short_lists(loop: Loop) -> str:
    seen: dict[int, list[float]] = {index: [] for index in range(3000)}
    for number in loop.steps():
        for index in range(3000):
            seen[index].append(number / 7 + index)  # grows
    return "seen[...]"


def leaks_list_of_tuples(loop: Loop) -> str:
    trace: list[tuple[float, ...]] = []
    for number in loop.steps():
        trace += [tuple(numbers(20, number + item)) for item in range(100)]  # grows
    return "trace"


def leaks_set_of_texts(loop: Loop) -> str:
    names: set[str] = set()
    for number in loop.steps():
        names.update(f"sample-{number}-{index}" for index in range(2000))  # grows
    return "names"


def leaks_errors_with_their_tracebacks(loop: Loop) -> str:
    errors: list[ValueError] = []
    for number in loop.steps():
        try:
            parse(number)
        except ValueError as error:
            errors.append(error)  # grows
    return "errors"


def parse(number: int) -> None:
    record = numbers(3000, number)
    raise ValueError(f"{len(record)} numbers")


def leaks_list_of_long_texts(loop: Loop) -> str:
    answers: list[str] = []
    for number in loop.steps():
        answers.append(f"{number} " * 15_000)  # grows
    return "answers"


def leaks_records_of_bytes(loop: Loop) -> str:
    records: dict[int, dict[str, bytes]] = {}
    for number in loop.steps():
        records[number] = {"image": bytes(30_000), "mask": bytes([number % 256]) * 10_000}  # grows
    return "records"


def leaking() -> list[Any]:
    return [value for name, value in globals().items() if name.startswith("leaks_")]


@pytest.mark.parametrize("run", leaking())
def test_plain_container_that_grows_is_named_with_its_line(loop: Loop, run: Callable[[Loop], str]) -> None:
    name = run(loop)
    (incident,) = loop.found
    assert (incident.finding.kind, incident.finding.severity) == ("memory_leak", "warning")
    assert incident.finding.subject == name
    frame = incident.stack[-1]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert frame.function == run.__name__
    assert lines[frame.line - 1].endswith("# grows")


def test_plain_container_that_grows_is_measured_in_objects_and_bytes(loop: Loop) -> None:
    leaks_dict_of_dicts_of_numbers(loop)
    (incident,) = loop.found
    # A dict of 20 dicts of 100 numbers; a number takes 24 bytes, a dict of 100 items 4,700.
    assert "about 2,021 objects per step" in incident.finding.message
    assert incident.finding.value == pytest.approx(20 * (100 * 24 + 4700), rel=0.15)


def healthy_losses_and_metrics(loop: Loop) -> None:
    losses, rows, history = [], [], defaultdict(list)
    for number in loop.steps():
        losses.append(number / 7)
        rows.append({f"metric{index}": number / 7 + index for index in range(10)})
        for index in range(100):
            history[f"norm{index}"].append(number / 7 + index)


def healthy_numbers_and_a_dict_of_each_step(loop: Loop) -> None:
    """A history: 20 numbers and a small dict a step come to less than half a MiB in 400 steps."""
    values: list[float] = []
    rows: list[dict[str, float]] = []
    for number in loop.steps():
        values.extend(numbers(20, number))
        rows.append({"step": number, "loss": number / 7})


def healthy_log_of_short_texts(loop: Loop) -> None:
    """Below the least that a container gets in a step before it is a leak."""
    lines: list[str] = []
    for number in loop.steps(500):
        lines.append(f"{number:03d} " * 5_000)


def healthy_texts_that_are_there_already(loop: Loop) -> None:
    texts = [f"{index} " * 20_000 for index in range(200)]
    order: list[str] = []
    for number in loop.steps():
        order.append(texts[number % 200])


def healthy_cache_of_texts(loop: Loop) -> None:
    cache: dict[str, list[float]] = {}

    def encode(text: str) -> list[float]:
        if text not in cache:
            cache[text] = numbers(200, len(cache))
        return cache[text]

    for number in loop.steps():
        for index in range(16):
            encode(f"text {number} {index}")


def healthy_cache_that_fills_and_stops(loop: Loop) -> None:
    tokens: dict[int, list[float]] = {}
    for number in loop.steps():
        for index in range(64):
            tokens[(number * 64 + index) % 2000] = numbers(60, index)


def healthy_buffer_with_a_limit(loop: Loop) -> None:
    buffer: deque[list[float]] = deque(maxlen=20000)
    ring: list[list[float]] = []
    for number in loop.steps():
        for _ in range(64):
            buffer.append(numbers(20, number))
            if len(ring) < 10000:
                ring.append(numbers(20, number))


def healthy_predictions_of_each_epoch(loop: Loop) -> None:
    predictions: list[list[float]] = []
    for number in loop.steps():
        if number % 80 == 0:
            predictions = []
        predictions.extend(numbers(16, number) for _ in range(64))


class Tokens(Dataset[list[float]]):
    """Keeps what it has read."""

    def __init__(self) -> None:
        self.kept: dict[int, list[float]] = {}

    def __getitem__(self, index: int) -> list[float]:
        self.kept[index] = numbers(100, index)
        return self.kept[index]


def healthy_data_set_that_keeps_its_samples(loop: Loop) -> None:
    samples = Tokens()
    for number in loop.steps():
        for index in range(32):
            samples[32 * number + index]


def healthy_references_to_what_is_there(loop: Loop) -> None:
    data = [numbers(100, index) for index in range(640)]
    order = []
    for number in loop.steps():
        order.append(data[number % 10 * 64 : number % 10 * 64 + 64])


def healthy_errors_without_their_tracebacks(loop: Loop) -> None:
    errors: list[ValueError] = []
    for number in loop.steps():
        try:
            parse(number)
        except ValueError as error:
            errors.append(error.with_traceback(None))


def healthy() -> list[Any]:
    return [value for name, value in globals().items() if name.startswith("healthy_")]


@pytest.mark.parametrize("run", healthy())
def test_plain_container_of_a_healthy_loop_is_no_leak(loop: Loop, run: Callable[[Loop], None]) -> None:
    run(loop)
    assert loop.found == []


def test_container_that_is_asked_is_a_leak_once_it_holds_much(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "ASKED_BYTES", 20.0 * 2**20)
    healthy_cache_of_texts(loop)
    assert [incident.finding.subject for incident in loop.found] == ["cache"]
