"""Profiles of the next steps: what is kept, what is marked, and that training does not notice."""

from __future__ import annotations

import gzip
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import small_training
import torch
from profiled_training import Session
from small_training import seeded_model, train
from torch import nn
from torch.profiler import profile as torch_profile
from torch.profiler import schedule

from probe.actions.profiling import step_profiler
from probe.delivery.control.control_messages import Profile, read_request
from probe.errors import WireError
from probe.loop.budget import Budget
from probe.loop.throttle import Change

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


@pytest.fixture
def session(spool: Path) -> Iterator[Session]:
    made = Session(spool)
    yield made
    made.run.close()


def line_of(module: ModuleType, text: str) -> int:
    """Number of the first line that has the text."""
    lines = inspect.getsource(module).splitlines()
    return 1 + next(at for at, line in enumerate(lines) if text in line)


@pytest.mark.capability(45, 46)
def test_profile_of_next_steps_has_tables_trace_and_event(session: Session) -> None:
    session.train(4)
    session.run.profile(steps=3)
    session.train(6)
    (body,) = session.profiles().values()
    assert (body.first_step, body.steps, body.asked_by) == (5, 3, "run.profile()")
    linear = next(row for row in body.ops if row.name == "aten::addmm")
    assert linear.calls == 6 and linear.self_cpu_s > 0.0
    assert {row.name for row in body.modules} >= {"0", "1", "4"}
    line = line_of(small_training, "model(inputs)")
    assert f"small_training.py:{line}" in {Path(row.name).name for row in body.lines}
    assert body.trace == "5.json.gz"
    trace = msgspec.json.decode(gzip.decompress((session.run_folder / "profiles" / body.trace).read_bytes()))
    assert {"aten::addmm", "aten::mm"} <= {event["name"] for event in trace["traceEvents"]}
    (event,) = session.events()
    assert "Steps 5 to 7 were profiled" in event.message and str(session.run_folder) in event.message


def test_profiled_steps_are_marked_and_the_one_that_writes_it(session: Session) -> None:
    session.train(4)
    session.run.profile(steps=2)
    session.train(6)
    session.run.close()
    assert session.marked_steps() == [5, 6, 7]


def test_profiled_steps_are_no_part_of_the_overhead(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary: list[bool] = []
    account = Budget.end_step

    def note(self: Budget, *, step_ns: int, own_ns: int, is_ordinary: bool = True) -> tuple[Change, ...]:
        ordinary.append(is_ordinary)
        return account(self, step_ns=step_ns, own_ns=own_ns, is_ordinary=is_ordinary)

    monkeypatch.setattr(Budget, "end_step", note)
    session.train(40)
    session.run.profile(steps=2)
    session.train(7)
    session.run.close()
    # Of steps 41, 42 and the one that writes the profile.
    assert ordinary.count(False) == 3


@pytest.mark.parametrize("steps", [0, -1, 101, 2.5, True, "3"])
def test_profile_of_a_wrong_number_of_steps_is_refused(session: Session, steps: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 100"):
        session.run.profile(steps=steps)


def test_second_profile_is_refused_until_the_first_is_there(session: Session) -> None:
    session.train(2)
    session.run.profile(steps=1)
    with pytest.raises(ValueError, match="being taken already"):
        session.run.profile(steps=1)
    session.train(3)
    session.run.profile(steps=1)
    session.train(3)
    assert len(session.profiles()) == 2


def test_profile_at_level_off_is_refused(session: Session) -> None:
    session.run.set_level("off")
    session.train(3)
    with pytest.raises(ValueError, match="level `off`"):
        session.run.profile()


@pytest.mark.capability(45)
def test_profiled_training_is_the_same_bit_for_bit(session: Session) -> None:
    plain = seeded_model()
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 40)
    threading.Timer(0.0, session.run.profile, kwargs={"steps": 5}).run()
    torch.manual_seed(0)
    fresh = seeded_model().state_dict()
    session.model.load_state_dict(fresh)
    torch.manual_seed(0)
    seeded_model()
    assert session.train(40) == expected
    assert all(
        torch.equal(*pair)
        for pair in zip(plain.state_dict().values(), session.model.state_dict().values(), strict=True)
    )
    assert len(session.profiles()) == 1


def test_followed_steps_are_left_for_a_profile_and_followed_again(session: Session) -> None:
    tracker = session.run._tracker
    assert tracker is not None
    session.train(150)
    assert tracker.fast.is_engaged
    session.run.profile(steps=3)
    session.train(4)
    assert not tracker.fast.is_engaged
    session.train(60)
    assert tracker.fast.is_engaged
    (body,) = session.profiles().values()
    assert body.steps == 3


def test_profiler_of_the_script_ends_ours_and_works(session: Session) -> None:
    session.train(3)
    session.run.profile(steps=50)
    session.train(4)
    with torch_profile() as theirs:
        session.train(2)
    assert any(row.key == "aten::addmm" for row in theirs.key_averages())
    (body,) = session.profiles().values()
    assert body.steps == 3 and "profiler of its own" in " ".join(body.notes)


def test_profile_while_the_script_profiles_says_so(session: Session) -> None:
    session.train(2)
    with torch_profile() as theirs:
        session.run.profile(steps=2)
        session.train(4)
    assert any(row.key == "aten::addmm" for row in theirs.key_averages())
    assert not session.profiles()
    (event,) = session.events()
    assert "Not profiled" in event.message and "running in this process already" in event.message


def test_profile_while_a_schedule_of_the_script_warms_up_is_not_taken(session: Session) -> None:
    session.train(1)
    with torch_profile(schedule=schedule(wait=0, warmup=8, active=2, repeat=1), with_stack=True) as theirs:
        session.run.profile(steps=20)
        for _ in range(12):
            session.train(1)
            theirs.step()
    assert not session.profiles()
    (event,) = session.events()
    assert "Not profiled" in event.message


def test_profiler_on_another_thread_waits_until_ours_has_ended(session: Session) -> None:
    session.train(1)
    session.run.profile(steps=90)
    session.train(3)
    seen: list[str] = []

    def profile_elsewhere() -> None:
        with torch_profile(with_stack=True) as theirs:
            torch.ones(3).add(1)
        seen.extend(row.key for row in theirs.key_averages())

    thread = threading.Thread(target=profile_elsewhere)
    thread.start()
    for _ in range(400):
        session.train(1)
        if not thread.is_alive():
            break
    thread.join(60)
    assert "aten::add" in seen
    (body,) = session.profiles().values()
    assert body.steps < 90


def test_profile_ends_early_when_it_takes_long(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profiler, "LONGEST_S", 0.0)
    session.train(2)
    session.run.profile(steps=50)
    session.train(4)
    (body,) = session.profiles().values()
    assert (body.steps, body.asked_steps) == (1, 50)
    assert "ended after 1 steps" in body.notes[0]


def test_session_that_ends_keeps_the_steps_so_far(session: Session) -> None:
    session.train(2)
    session.run.profile(steps=50)
    session.train(4)
    session.run.close()
    (body,) = session.profiles().values()
    assert body.steps == 3 and "session ended" in body.notes[0]


def test_watchpoint_with_action_profile_profiles_the_next_steps(session: Session) -> None:
    session.run.watchpoint("step == 3", action="profile", once=True)
    session.train(12)
    (body,) = session.profiles().values()
    assert (body.first_step, body.steps) == (4, 5)
    assert body.asked_by == "watchpoint step == 3"


def test_profile_that_cannot_be_read_leaves_training_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(step_profiler, "make_profile", fails)
    session.run.profile(steps=1)
    assert len(session.train(5)) == 5
    (event,) = session.events()
    assert "planted" in event.message


def test_profile_of_a_model_with_several_optimizers_counts_steps(spool: Path) -> None:
    session = Session(spool)
    parts = [nn.Module.parameters(session.model[0]), nn.Module.parameters(session.model[4])]
    optimizers = [torch.optim.SGD(part, lr=0.1) for part in parts]
    session.run.profile(steps=2)
    for _ in range(6):
        session.model(torch.ones(8, 6)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    (body,) = session.profiles().values()
    session.run.close()
    assert body.steps == 2


def test_request_for_a_profile_is_read_and_bounded() -> None:
    assert read_request(b'{"do": "profile", "steps": 7}') == Profile(steps=7)
    for steps in (0, 101):
        with pytest.raises(WireError):
            read_request(b'{"do": "profile", "steps": %d}' % steps)
