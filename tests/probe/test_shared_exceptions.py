"""An exception that leaves a script with several models has one event, on the model that raised it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_numbers import runs_of
from torch import Tensor, nn

import probe
from probe.session import _report_all
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")
_Step = Callable[["Pair"], None]


class Brittle(nn.Module):
    """Raises when it is told to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer, self.fails = nn.Linear(inputs, outputs), False

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise ValueError("in the forward")
        return self.layer(x)


class Pair:
    """A generator and its judge, in one loop."""

    def __init__(self) -> None:
        self.gen, self.judge = Brittle(3, 2), Brittle(2, 1)
        self.of_gen = torch.optim.Adam(self.gen.parameters())
        self.of_judge = torch.optim.Adam(self.judge.parameters())

    def step(self) -> None:
        """A healthy one."""
        self.update_judge()
        self.of_gen.zero_grad()
        self.judge(self.gen(torch.ones(4, 3))).sum().backward()
        self.of_gen.step()

    def update_judge(self) -> None:
        self.of_judge.zero_grad()
        self.judge(self.gen(torch.ones(4, 3)).detach()).sum().backward()
        self.of_judge.step()


def old_score(pair: Pair) -> None:
    score = pair.judge(pair.gen(torch.ones(4, 3)).tanh()).tanh()
    score.sum().backward(retain_graph=True)
    pair.of_judge.step()
    score.mean().backward()


def forward_of_the_judge(pair: Pair) -> None:
    pair.judge.fails = True
    pair.update_judge()


def forward_of_the_generator(pair: Pair) -> None:
    pair.update_judge()
    pair.gen.fails = True
    pair.gen(torch.ones(4, 3))


def own_code(pair: Pair) -> None:
    pair.update_judge()
    raise KeyError("neither a forward nor a backward")


@pytest.fixture
def pair() -> Pair:
    torch.manual_seed(0)
    return Pair()


def events_of(spool: Path) -> list[Event]:
    return [event for run in runs_of(spool) for event in run.latest_events if event.kind == "exception"]


@pytest.mark.parametrize("steps", [0, 3], ids=["at the first step", "later"])
@pytest.mark.parametrize(
    ("fail", "model"),
    [
        (old_score, "gen"),
        (forward_of_the_judge, "judge"),
        (forward_of_the_generator, "gen"),
        (own_code, "gen"),
    ],
)
def test_exception_has_one_event_on_the_model_that_raised_it(
    spool: Path, pair: Pair, fail: _Step, model: str, steps: int
) -> None:
    runs = [
        probe.watch(pair.gen, pair.of_gen, name="gen"),
        probe.watch(pair.judge, pair.of_judge, name="judge"),
    ]
    for _ in range(steps):
        pair.step()
    with pytest.raises(Exception) as caught:
        fail(pair)
    for _ in range(2):  # a hook that is called again
        _report_all(caught.value, caught.value.__traceback__)
    for run in runs:
        run.close()
    found = events_of(spool)
    watched = runs[0 if model == "gen" else 1]
    assert [event.run for event in found] == [watched.run]


def test_exception_through_two_context_managers_has_one_event(spool: Path, pair: Pair) -> None:
    with (
        pytest.raises(KeyError),
        probe.watch(pair.gen, pair.of_gen),
        probe.watch(pair.judge, pair.of_judge),
    ):
        pair.step()
        own_code(pair)
    assert len(events_of(spool)) == 1


def test_exception_that_was_recorded_before_stays_where_it_was(spool: Path, pair: Pair) -> None:
    gen, judge = probe.watch(pair.gen, pair.of_gen), probe.watch(pair.judge, pair.of_judge)
    error = KeyError("caught, and raised again")
    judge.track_error(error)
    _report_all(error, None)
    for run in (gen, judge):
        run.close()
    assert [(event.run, event.severity) for event in events_of(spool)] == [(judge.run, "critical")]


def test_exception_ends_all_models_by_it(spool: Path, pair: Pair) -> None:
    runs = [probe.watch(pair.gen, pair.of_gen), probe.watch(pair.judge, pair.of_judge)]
    pair.step()
    _report_all(KeyError("late"), None)
    for run in runs:
        run.close()
    ends = [run.end for run in runs_of(spool)]
    assert [end.outcome for end in ends if end is not None] == ["exception", "exception"]
