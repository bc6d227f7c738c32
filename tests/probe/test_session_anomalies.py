"""What `watch` does about a bad step, an exception and a failure of its own."""

import copy
import logging
import math
from pathlib import Path

import pytest
import torch
from run_numbers import run_of
from small_training import batches, seeded_model, train
from torch import Tensor, nn
from torch.nn import functional as F

import probe
from probe import AnomalyError

pytestmark = pytest.mark.usefixtures("one_thread")


class SqrtAtZero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(torch.sqrt(hidden * 0.0))


@pytest.mark.capability(10)
def test_nan_in_backward_names_its_op_module_and_line(spool: Path) -> None:
    model = SqrtAtZero()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    event = next(e for e in run_of(spool).events if e.kind == "nonfinite_gradient")
    assert event.origin is not None
    assert (event.origin.phase, event.origin.module) == ("backward", "")
    assert "Sqrt" in event.origin.op
    assert event.stacks.forward[-1].function.endswith("forward")
    assert "torch.sqrt(hidden * 0.0)" in event.stacks.forward[-1].code
    assert event.stacks.training_loop[-1].function == "test_nan_in_backward_names_its_op_module_and_line"


def test_nonfinite_loss_and_its_gradients_are_one_event(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        (model(torch.ones(4, 6)).sum() * math.inf).backward()
        optimizer.step()
    kinds = [e.kind for e in run_of(spool).latest_events if e.severity == "critical"]
    assert kinds == ["nonfinite_loss"]


def test_skipped_update_counts_as_a_step(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for step, (inputs, targets) in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * math.nan if step == 3 else loss).backward()
            if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                optimizer.step()
    journal = run_of(spool)
    assert [f.step for f in journal.frames] == [0, 1, 2, 3, 4, 5]
    assert math.isnan(journal.frames[3].scalars["loss"])
    assert [e.step for e in journal.latest_events if e.kind == "nonfinite_loss"] == [3]


@pytest.mark.capability(9)
def test_mode_raise_stops_before_the_update() -> None:
    model = SqrtAtZero()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    with (
        probe.watch(model, optimizer, mode="raise"),
        pytest.raises(AnomalyError, match="NaN at step 0 began as Inf in the root module"),
    ):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_mode_raise_stops_every_bad_step_of_an_episode() -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    caught = []
    with probe.watch(model, optimizer, mode="raise"):
        for step, (inputs, targets) in enumerate(batches(8)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            if step in (4, 5, 7):
                model[4].weight.grad[0] = math.inf  # type: ignore[index, union-attr]
            try:
                optimizer.step()
            except AnomalyError:
                caught.append(step)
    assert caught == [4, 5, 7]
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


@pytest.mark.capability(9)
def test_mode_warn_warns_once_for_an_episode() -> None:
    model = SqrtAtZero()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(RuntimeWarning, match="nonfinite_gradient: NaN at step 0 began as Inf") as seen:
        with probe.watch(model, optimizer, mode="warn"):
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).sum().backward()
                if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                    optimizer.step()
    assert len(seen) == 1


@pytest.mark.capability(61)
def test_events_reach_an_injected_logger(caplog: pytest.LogCaptureFixture) -> None:
    model, logger = seeded_model(), logging.getLogger("users.own")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, replay=False, logger=logger), caplog.at_level("INFO"):
        (model(torch.randn(4, 6)) * math.nan).sum().backward()
        optimizer.step()
    assert ("users.own", logging.ERROR) in {(record.name, record.levelno) for record in caplog.records}


def test_exception_in_the_block_is_recorded_and_passes_on(spool: Path) -> None:
    model = seeded_model()
    with pytest.raises(KeyError, match="lost"), probe.watch(model):
        raise KeyError("lost")
    (event,) = run_of(spool).latest_events
    assert (event.kind, event.severity, event.subject) == ("exception", "critical", "KeyError")
    frame = event.stacks.training_loop[-1]
    assert frame.code.splitlines()[frame.line - frame.code_first_line].strip() == 'raise KeyError("lost")'
    assert run_of(spool).end is not None


def test_failure_of_the_probe_is_counted_and_training_goes_on(
    spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        monkeypatch.setattr(run._incidents, "judge_quiet", lambda *_: 1 / 0)
        # Quiet steps are judged together, 32 at most.
        losses = train(model, optimizer, 50)
    frames = run_of(spool).frames
    assert len(losses) == len(frames) == 50
    assert frames[-1].scalars["probe_failures"] == 1.0


def test_sampled_outputs_of_a_step_whose_loss_is_bad_are_no_second_fault(spool: Path) -> None:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, features={"activations": 1}, overhead_limit=0.0):
        for step, (inputs, targets) in enumerate(batches(6)):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs * (math.nan if step == 4 else 1.0)), targets).backward()
            if step != 4:
                optimizer.step()
    kinds = {event.kind for event in run_of(spool).events if event.severity != "info"}
    assert "nonfinite_loss" in kinds
    assert "nonfinite_activation" not in kinds
