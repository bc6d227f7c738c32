"""What `watch` attaches: steps of less usual loops are seen, compiling and forking do not notice."""

import math
import os
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

import probe


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def steps_of(spool: Path) -> list[int]:
    (run,) = spool.iterdir()
    return [frame.step for frame in read_journal(run).frames]


def compiled_frames(watch: str) -> tuple[int, int]:
    """Train a compiled model; return dynamo's (frames, ops)."""
    torch._dynamo.reset()
    model, counter = make_model(), CompileCounter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer) if watch == "before" else None
    compiled = torch.compile(model, backend=counter)
    for step in range(4):
        if watch == "between" and step == 2:
            run = probe.watch(compiled, optimizer)
        compiled(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    if run is not None:
        run.close()
    return counter.frame_count, counter.op_count


@pytest.mark.parametrize("watch", ["before", "between"])
def test_compiled_model_has_no_extra_graph_or_recompilation(watch: str) -> None:
    assert compiled_frames(watch) == compiled_frames("never")


def test_nested_step_calls_count_once(spool: Path) -> None:
    class Nested(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()

    model = make_model()
    optimizer = Nested(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert steps_of(spool) == [0, 1, 2]


def test_two_optimizers_of_one_iteration_share_its_step(spool: Path) -> None:
    model = make_model()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)  # type: ignore[index]
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)  # type: ignore[index]
    with probe.watch(model):
        for _ in range(2):
            for optimizer in (first, second):
                model(torch.ones(3, 4)).sum().backward()
                optimizer.step()
    assert steps_of(spool) == [0, 0, 1, 1]


def test_another_model_of_the_script_is_not_counted(spool: Path) -> None:
    model, other = make_model(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        for _ in range(3):
            (other(torch.ones(3, 4)).sum() * 1000).backward()
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            optimizer.step()
            newest = loss.item()
    (run,) = spool.iterdir()
    frames = read_journal(run).frames
    assert frames[-1].scalars["loss"] == pytest.approx(newest)


def test_step_that_raises_does_not_hide_the_next(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def broken() -> Tensor:
        raise RuntimeError("closure")

    with probe.watch(model, optimizer):
        with pytest.raises(RuntimeError, match="closure"):
            optimizer.step(broken)
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert len(steps_of(spool)) == 2


def test_grad_scaler_scale_is_undone_and_its_overflow_is_information(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    losses = []
    with probe.watch(model, optimizer):
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(1e4 * torch.ones(3, 4)).sum()
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update(2.0**10)
    (run,) = spool.iterdir()
    journal = read_journal(run)
    assert [f.scalars["loss"] for f in journal.frames] == pytest.approx(losses)
    assert journal.frames[-1].stage == "unscaled"
    assert {e.kind for e in journal.events if e.severity != "info"} == set()
    assert "amp_overflow" in {e.kind for e in journal.events}


def test_forked_child_records_nothing(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            os._exit(1 if run.active else 0)
        assert os.waitpid(child, 0)[1] == 0
        (model(torch.ones(3, 4)).sum() * math.pi).backward()
        optimizer.step()
    assert steps_of(spool) == [0]


def test_reentrant_checkpoint_is_one_backward(spool: Path) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.inner = make_model()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=True)

    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        (model(torch.ones(3, 4)).sum() * math.nan).backward()
        optimizer.step()
    (run,) = spool.iterdir()
    (frame,) = read_journal(run).frames
    # Judged inside the backward of the checkpoint, the first layer would not have its gradient yet.
    assert frame.missing == b""


def test_second_clipping_does_not_hide_what_the_first_changed(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        model(100 * torch.ones(3, 4)).square().sum().backward()
        total = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
    (run,) = spool.iterdir()
    assert read_journal(run).frames[0].scalars["grad_norm"] == pytest.approx(total)


def losses_of(spool: Path) -> list[float]:
    (run,) = spool.iterdir()
    return [frame.scalars["loss"] for frame in read_journal(run).frames]


def test_optimizer_made_anew_goes_on_counting(spool: Path) -> None:
    model = make_model()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = [optimizer]
    with probe.watch(model, optimizer):
        for step in range(4):
            if step == 2:
                optimizer = torch.optim.Adam(model.parameters())
                kept.append(optimizer)
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert steps_of(spool) == [0, 1, 2, 3]


def test_wrapper_that_has_no_hooks_of_its_own_is_seen_through(spool: Path) -> None:
    class Prepared(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner

        @property
        def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]
            return self.inner.param_groups

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            self.inner.step()

    model = make_model()
    optimizer = Prepared(torch.optim.SGD(model.parameters(), lr=0.1))
    with probe.watch(model, optimizer):
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert steps_of(spool) == [0, 1]


def test_optimizer_without_groups_does_not_reach_the_script(spool: Path) -> None:
    class Odd(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            pass

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    odd = Odd(make_model().parameters(), lr=0.1)
    del odd.param_groups
    with probe.watch(model):
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            odd.step()
    assert steps_of(spool) == [0, 1]


def test_update_that_a_grad_scaler_skips_is_a_step(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses = []
    with probe.watch(model, optimizer):
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).sum()
            if step == 1:
                # Adds nothing to the loss, but an infinite gradient.
                loss = loss + ((loss - loss.detach()) * 1e30) * 1e30
            losses.append(loss.item())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert steps_of(spool) == [0, 1, 2, 3]
    assert losses_of(spool) == pytest.approx(losses)
    (run,) = spool.iterdir()
    assert [(e.kind, e.step) for e in read_journal(run).latest_events] == [("amp_overflow", 1)]


def test_gradients_of_a_scaled_loss_are_labelled_scaled_before_unscaling(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with probe.watch(model, optimizer):
        scaler.scale(1e4 * model(torch.ones(3, 4)).sum()).backward()
        scaler.step(optimizer)
    (run,) = spool.iterdir()
    assert [frame.stage for frame in read_journal(run).frames] == ["scaled"]


def test_line_search_gives_the_loss_of_its_first_evaluation(spool: Path) -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    losses: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().sum()
        loss.backward()
        losses.append(loss.item())
        return loss

    first = []
    with probe.watch(model, optimizer):
        for _ in range(3):
            first.append(len(losses))
            optimizer.step(closure)
    assert len(losses) > 6
    assert losses_of(spool) == [losses[index] for index in first]


@pytest.mark.parametrize("is_detached", [True, False])
def test_loss_of_a_discriminator_is_not_the_generators(spool: Path, is_detached: bool) -> None:
    generator, judge = make_model(), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.1)
    other = torch.optim.SGD(judge.parameters(), lr=0.1)
    losses = []
    with probe.watch(generator, optimizer):
        for _ in range(3):
            made = generator(torch.ones(3, 4))
            (1000 + judge(made.detach() if is_detached else made).sum()).backward()
            other.step()
            optimizer.zero_grad()
            loss = judge(generator(torch.ones(3, 4))).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses_of(spool) == pytest.approx(losses)
    assert steps_of(spool) == [0, 1, 2]


def test_step_that_raises_in_a_container_does_not_hide_the_next(spool: Path) -> None:
    class Container(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_model()

    def broken() -> Tensor:
        raise KeyboardInterrupt

    model = Container()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer):
        with pytest.raises(KeyboardInterrupt):
            optimizer.step(broken)
        for _ in range(2):
            model.inner(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    assert steps_of(spool) == [0, 1]


def test_optimizer_in_backward_makes_one_step_a_backward(spool: Path) -> None:
    model = make_model()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with probe.watch(model):
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
    assert sorted(set(steps_of(spool))) == [0, 1, 2]


def test_tracing_by_torch_fx_does_not_notice() -> None:
    model, watched = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), nn.Linear(3, 3)
    expected = torch.fx.symbolic_trace(model).code
    with probe.watch(watched):
        assert torch.fx.symbolic_trace(model).code == expected


def test_wrapper_that_someone_put_over_ours_stays() -> None:
    class Model(nn.Linear):
        pass

    model, calls = Model(4, 2), []
    run = probe.watch(model)
    ours = Model.__call__

    def theirs(self: Model, *args: Tensor) -> Tensor:
        calls.append(self)
        result: Tensor = ours(self, *args)
        return result

    Model.__call__ = theirs  # type: ignore[method-assign]
    run.close()
    model(torch.ones(3, 4))
    assert calls == [model]


def test_session_that_raises_does_not_hide_the_step_from_another(tmp_path: Path) -> None:
    first, second = make_model(), make_model()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    spool = tmp_path / "second"
    with (
        probe.watch(first, optimizer, mode="raise", spool=tmp_path / "first"),
        probe.watch(second, optimizer, spool=spool),
    ):
        loss = first(torch.ones(3, 4)).sum() + second(torch.ones(3, 4)).sum()
        with pytest.raises(probe.AnomalyError):
            (loss * math.nan).backward()
    (run,) = spool.iterdir()
    assert [e.kind for e in read_journal(run).latest_events if e.severity == "critical"] == ["nonfinite_loss"]


def test_accumulated_sparse_gradients_are_one_step(spool: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        for index in range(4):
            model(torch.tensor([1, 2])).sum().backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
        assert run._guard.failures == 0
    assert steps_of(spool) == [0, 1]
