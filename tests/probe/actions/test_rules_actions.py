"""What a watchpoint does: an event, a snapshot, a bundle, a pause. None of it changes the training."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from bundle_models import Planted
from journals import read_journal
from replayed_step import batch
from small_training import batches, seeded_model
from torch.nn import functional as F

import probe
from probe.forensics.bundle.reproduce import read_bundle, reproduce
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")


def start(spool: Path, **options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer, probe.Probe]:
    model = seeded_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, probe.watch(model, optimizer, spool=spool, connect="", **options)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def events_of(spool: Path, *kinds: str) -> list[Event]:
    (folder,) = spool.iterdir()
    return [event for event in read_journal(folder).latest_events if event.kind in kinds]


def test_event_is_a_warning_with_the_users_line_and_its_name(spool: Path) -> None:
    model, optimizer, run = start(spool)
    with run:
        run.watchpoint("step == 3", name="third", severity="critical")
        run.watchpoint("step == 4")
        train(model, optimizer, 6)
    first, second = events_of(spool, "custom")
    assert (first.subject, first.severity, first.step) == ("third", "critical", 3)
    assert first.message.splitlines()[0] == "third at step 3: step == 3"
    assert first.stacks.training_loop[-1].file == __file__
    assert first.stacks.training_loop[-1].function == "train"
    assert (second.subject, second.severity) == ("step == 4", "warning")


def test_snapshot_keeps_every_number_of_its_step(spool: Path) -> None:
    model, optimizer, run = start(spool, preset="minimal", overhead_limit=0.0)
    seen: dict[str, tuple[float, float, float]] = {}

    def look(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradient, value = parameter.grad.double(), parameter.detach().double()
            seen[name] = float(gradient.norm()), float(value.norm()), float(value.std(unbiased=False))

    with run:
        run.watchpoint("step == 2", action="snapshot")
        for step, (inputs, targets) in enumerate(batches(4)):
            look(inputs, targets)
            if step == 2:
                expected = dict(seen)
            optimizer.step()
    (event,) = events_of(spool, "snapshot")
    assert (event.step, event.severity) == (2, "info")
    path = Path(event.message.splitlines()[-1].rpartition(": ")[2])
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert (kept["step"], kept["event"]["id"], kept["v"]) == (2, event.id, 1)
    rows = {row["name"]: row for row in kept["parameters"]}
    assert list(rows) == list(expected)
    for name, (gradient, norm, deviation) in expected.items():
        assert rows[name]["grad_norm"] == pytest.approx(gradient, rel=1e-6)
        assert rows[name]["parameter_norm"] == pytest.approx(norm, rel=1e-6)
        assert rows[name]["parameter_std"] == pytest.approx(deviation, rel=1e-5, abs=1e-9)
    assert kept["scalars"]["lr"] == 0.1
    (folder,) = spool.iterdir()
    written = {frame.step: [column.name for column in frame.columns] for frame in read_journal(folder).frames}
    assert "grad_norm" in written[2], "the step's frame in the journal has its columns too"
    assert "grad_norm" not in written[1]


def test_snapshot_of_a_step_with_nan_is_plain_json(spool: Path) -> None:
    model, optimizer, run = start(spool, replay=False, bundles=0)
    with run:
        run.watchpoint("step == 1", action="snapshot")
        for step, (inputs, targets) in enumerate(batches(3)):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            (loss * float("nan") if step == 1 else loss).backward()
            if step != 1:
                optimizer.step()
    (event,) = events_of(spool, "snapshot")
    path = Path(event.message.splitlines()[-1].rpartition(": ")[2])
    kept = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert kept["parameters"][0]["grad_norm"] == "NaN"


def test_bundle_that_is_asked_for_is_of_the_next_step(spool: Path) -> None:
    model, optimizer, run = start(spool)
    with run:
        train(model, optimizer, 3)
        run.save_bundle()
        train(model, optimizer, 3)
        assert run.watchpoints == ()
    (event,) = events_of(spool, "custom")
    assert (event.step, event.severity, event.subject) == (3, "info", "bundle asked for")
    bundle = read_bundle(Path(event.message.splitlines()[-1].rpartition(": ")[2]))
    assert (bundle.event.step, bundle.not_replayable) == (3, "")


def test_bundle_of_a_healthy_step_reproduces_it(spool: Path) -> None:
    torch.manual_seed(3)
    model = Planted()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with probe.watch(model, optimizer, spool=spool, connect="") as run:
        run.watchpoint("step == 2", action="bundle")
        for _ in range(4):
            model(batch(16, 4), 0.0).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (event,) = events_of(spool, "custom")
    bundle = Path(event.message.splitlines()[-1].rpartition(": ")[2])
    assert bundle.name == event.id
    done = reproduce(read_bundle(bundle), bundle, Planted)
    assert done.is_exact
    assert done.replay is None or done.replay.origin is None


def test_pause_waits_before_the_update_until_another_thread_resumes(spool: Path) -> None:
    model, optimizer, run = start(spool, hang_seconds=0.3)
    before: dict[str, torch.Tensor] = {}
    found: list[object] = []
    waited: list[float] = []

    def come_back() -> None:
        until = time.monotonic() + 20
        while not run.is_paused and time.monotonic() < until:
            time.sleep(0.01)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        began = time.monotonic()
        time.sleep(0.9)  # several times what would be a hang
        found.append(all(torch.equal(weights[name], model.state_dict()[name]) for name in weights))
        before.update(weights)
        waited.append(time.monotonic() - began)
        found.append(run.resume())

    helper = threading.Thread(target=come_back)
    helper.start()
    with run:
        assert not run.resume()
        run.watchpoint("step == 5", action="pause", name="stop here")
        train(model, optimizer, 9)
        helper.join(timeout=30)
    twin = seeded_model()
    train(twin, torch.optim.SGD(twin.parameters(), lr=0.1), 5)
    assert found == [True, True]
    assert torch.equal(before["0.weight"], twin.state_dict()["0.weight"]), "five updates were made by then"
    cause, pause = events_of(spool, "custom", "hang")
    assert (cause.subject, cause.step) == ("stop here", 5)
    assert "Paused before the update" in cause.message
    assert (pause.subject, pause.step, pause.ended) == ("pause: stop here", 5, True)
    assert "resumed by run.resume()" in pause.message
    (folder,) = spool.iterdir()
    states = [event for event in read_journal(folder).events if event.id == pause.id]
    assert [state.ended for state in states] == [False, True]
    times = {frame.step: frame.scalars.get("step_time_s", 0.0) for frame in read_journal(folder).frames}
    assert times[6] < waited[0], "the pause is no part of a step's time"


def test_pause_ends_by_itself_at_its_limit(spool: Path) -> None:
    model, optimizer, run = start(spool, pause_limit_s=0.05)
    with run:
        run.watchpoint('logged("x") == 2', action="pause", once=True)
        for step in range(4):
            train(model, optimizer, 1)
            run.log(x=step)
    _, pause = events_of(spool, "custom")
    assert "resumed by the time limit" in pause.message
    assert "Paused after the update" in events_of(spool, "custom")[0].message


@pytest.fixture
def two_ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("asked", [False, True])
def test_pause_is_declined_where_other_ranks_would_wait_unless_asked(spool: Path, asked: bool) -> None:
    model, optimizer, run = start(spool, pause_limit_s=0.01, pause_ranks=asked)
    with run:
        run.watchpoint("step == 1", action="pause")
        train(model, optimizer, 3)
    cause, *pauses = events_of(spool, "custom")
    assert ("Not paused: other ranks" in cause.message) is not asked
    assert len(pauses) == asked


def test_training_with_watchpoints_and_rules_is_the_same_to_the_bit(spool: Path) -> None:
    plain = seeded_model()
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 40)
    model, optimizer, run = start(spool)
    with run:
        run.watchpoint('grad_norm("*") > 1.2 * median')
        run.watchpoint("step == 7", action="snapshot")
        run.watchpoint("step == 9", action="bundle")
        run.add_rule(lambda step: f"loss {step.loss}" if step.step % 5 == 0 else None, name="every fifth")
        assert train(model, optimizer, 40) == expected
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert len(events_of(spool, "custom", "snapshot")) > 3


def test_condition_that_holds_at_the_very_end_does_not_hold_up_the_script(spool: Path) -> None:
    model, optimizer, run = start(spool)
    with run:
        run.watchpoint('logged("x") == 1', action="pause")
        train(model, optimizer, 1)
        run.log(x=1)
    (cause,) = events_of(spool, "custom")
    assert "Not paused: the session ends" in cause.message


def test_session_that_ends_lets_a_paused_training_go_on(spool: Path) -> None:
    model, optimizer, run = start(spool)

    def close() -> None:
        until = time.monotonic() + 20
        while not run.is_paused and time.monotonic() < until:
            time.sleep(0.01)
        run.close()

    closer = threading.Thread(target=close)
    closer.start()
    run.watchpoint("step == 1", action="pause")
    train(model, optimizer, 3)
    closer.join(timeout=30)
    assert not closer.is_alive()
    assert not run.active


def test_histories_of_all_watchpoints_have_64_mib(spool: Path) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(700)])
    comparisons, rows = 19, 700 + 1400
    condition = " or ".join(['grad_norm("*")>9e9*mad'] * comparisons)
    fourth = round(4 * comparisons * rows * 64 * 8 / 2**20)
    with probe.watch(model, spool=spool, connect="") as run:
        for number in range(3):
            run.watchpoint(condition, name=f"wide {number}")
        with pytest.raises(ValueError, match=f"would take {fourth} MiB, at most 64 are allowed"):
            run.watchpoint(condition, name="one more")
        run.watchpoint('grad_norm("*") > 5 and loss > 8 * median')
        assert run.remove_rule("wide 1")
        run.watchpoint(condition, name="one more")
