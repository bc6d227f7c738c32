"""A loss that is kept on an attribute, in a dictionary or by a generator: its line is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.wire import Event

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, BAD = 8, 5
Batch = tuple[Tensor, float]


class Translator:
    """As in the public CycleGAN: no module, two networks, losses on attributes."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.opt_critic = torch.optim.SGD(self.critic.parameters(), lr=0.01, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.99)
        self.losses: dict[str, Tensor] = {}
        self.forwards, self.seen = 0, list[float]()
        self.generator = torch.Generator().manual_seed(3)

    def set_input(self, batch: Batch) -> None:
        self.real, self.parts = batch

    def forward(self) -> None:
        self.forwards += 1
        self.noise = torch.randn_like(self.real)
        self.fake = self.net(self.real + 0.1 * self.noise)

    def backward_critic(self) -> None:
        self.loss_critic = self.critic(self.fake.detach()).mean() - self.critic(self.real).mean()
        self.loss_critic.backward()

    def backward_net(self) -> None:
        self.loss_cycle = (self.fake - self.real).abs().mean() / self.parts  # CYCLE
        self.loss_idt = (self.net(self.real) - self.real).abs().mean()
        self.loss = self.loss_cycle + self.loss_idt - self.critic(self.fake).mean()
        self.loss.backward()
        self.seen.append(float(self.loss.detach()))

    def optimize_parameters(self) -> None:
        self.forward()
        self.opt_critic.zero_grad()
        self.backward_critic()
        self.opt_critic.step()
        self.opt.zero_grad()
        self.backward_net()
        self.opt.step()
        self.scheduler.step()

    def forward_with_loss(self) -> None:
        self.fake = self.net(self.real)
        self.loss = (self.fake - self.real).square().mean() / self.parts  # WITH

    def losses_of(self, batch: Batch) -> None:
        x, parts = batch
        self.losses["L1"] = self.net(x).abs().mean()
        self.losses["G"] = self.losses["L1"] / parts  # DICT

    def update(self, loss: Tensor | None = None) -> None:
        self.opt.zero_grad()
        (self.loss if loss is None else loss).backward()
        self.opt.step()

    @property
    def kept(self) -> Any:
        rates = [group["lr"] for opt in (self.opt, self.opt_critic) for group in opt.param_groups]
        seen = float(torch.tensor(self.seen).nansum())
        drawn = bytes(self.generator.get_state().tolist())
        return self.forwards, len(self.seen), seen, rates, self.scheduler.last_epoch, drawn


def methods_of_a_wrapper(it: Translator, batch: Batch) -> None:
    it.set_input(batch)
    it.optimize_parameters()


def forward_of_no_module(it: Translator, batch: Batch) -> None:
    it.set_input(batch)
    it.forward_with_loss()
    it.update()


def in_a_dictionary(it: Translator, batch: Batch) -> None:
    it.losses_of(batch)
    it.opt.zero_grad()
    it.losses["G"].backward()
    it.opt.step()


def in_a_dictionary_handed_over(it: Translator, batch: Batch) -> None:
    def fill(out: dict[str, Tensor]) -> None:
        out["G"] = it.net(batch[0]).mean() / batch[1]  # FILL

    found: dict[str, Tensor] = {}
    fill(found)
    it.update(found["G"])


def by_inner_functions(it: Translator, batch: Batch) -> None:
    def compute() -> None:
        it.loss = out.mean() / batch[1] - 1.0  # INNER

    def optimize() -> None:
        it.update(it.loss)

    out = it.net(batch[0])
    compute()
    optimize()


def by_nonlocal(it: Translator, batch: Batch) -> None:
    loss = torch.zeros(())

    def compute() -> None:
        nonlocal loss
        loss = it.net(batch[0]).mean() / batch[1]  # NONLOCAL

    compute()
    it.update(loss)


def losses_in_turn(it: Translator, batch: Batch) -> Iterator[Tensor]:
    x, parts = batch
    loss = it.net(x).mean() / parts  # YIELD
    yield loss


def by_a_generator(it: Translator, batch: Batch) -> None:
    for loss in losses_in_turn(it, batch):
        it.update(loss)


def named_losses(it: Translator, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    for name, parts in (("first", batch[1]),):
        loss = it.net(batch[0]).mean() / parts  # NAMED
        yield name, loss


def by_a_generator_of_pairs(it: Translator, batch: Batch) -> None:
    for _, loss in named_losses(it, batch):
        it.update(loss)


def by_next(it: Translator, batch: Batch) -> None:
    made = losses_in_turn(it, batch)
    loss = next(made)
    it.opt.zero_grad()
    loss.backward()
    it.opt.step()


def by_an_expression(it: Translator, batch: Batch) -> None:
    for loss in (it.net(x).mean() / parts for x, parts in [batch]):  # EXPRESSION
        it.update(loss)


def backward_in_a_function_that_returns(it: Translator, batch: Batch) -> None:
    def send_back(x: Tensor, parts: float) -> float:
        out = it.net(x)
        loss = ((out - out.detach()).square() + (parts - 1.0)).abs().sqrt().mean()  # RETURNED
        it.opt.zero_grad()
        loss.backward()
        return float(loss.detach())

    if batch[1] == 1.0:
        it.loss = it.net(batch[0]).mean()
        it.update()
        return
    send_back(batch[0], 1.0)
    it.opt.step()


def in_a_list_begun_before(it: Translator, batch: Batch) -> None:
    found = []
    for x in batch[0].chunk(2):
        out = it.net(x)
        found.append(out.mean() / batch[1])  # LIST
    it.update(torch.stack(found).sum())


def in_a_sum_begun_before(it: Translator, batch: Batch) -> None:
    total: Any = 0.0
    for x in batch[0].chunk(2):
        total = total + it.net(x).mean() / batch[1]  # SUM
    it.update(total)


def with_a_generator_of_its_own(it: Translator, batch: Batch) -> None:
    def noisy() -> Tensor:
        noise = torch.randn(8, 4, generator=it.generator)
        return (it.net(batch[0]) + noise).mean() / batch[1]  # NOISY

    it.loss = noisy()
    it.update()


Step = Callable[[Translator, Batch], None]


def run_of(step: Step, spool: Path | None) -> tuple[Translator, Event | None]:
    it = Translator()
    batches = [(torch.randn(8, 4), 0.0 if number == BAD else 1.0) for number in range(STEPS)]
    run = None if spool is None else probe.watch(it.net, it.opt, spool=spool, connect="")
    for batch in batches:
        step(it, batch)
    if run is None:
        return it, None
    assert spool is not None and run._guard.failures == 0
    run.close()
    (journal,) = spool.iterdir()
    return it, next(e for e in read_journal(journal).events if e.kind.startswith("nonfinite"))


VARIANTS = [
    (methods_of_a_wrapper, "CYCLE", "div"),
    (forward_of_no_module, "WITH", "div"),
    (in_a_dictionary, "DICT", "div"),
    (in_a_dictionary_handed_over, "FILL", "div"),
    (by_inner_functions, "INNER", "div"),
    (by_nonlocal, "NONLOCAL", "div"),
    (by_a_generator, "YIELD", "div"),
    (by_a_generator_of_pairs, "NAMED", "div"),
    (by_next, "YIELD", "div"),
    (by_an_expression, "EXPRESSION", "div"),
    (backward_in_a_function_that_returns, "RETURNED", "SqrtBackward0"),
    (in_a_list_begun_before, "LIST", "div"),
    (in_a_sum_begun_before, "SUM", "div"),
    (with_a_generator_of_its_own, "NOISY", "div"),
]


@pytest.mark.parametrize(("step", "marker", "op"), VARIANTS, ids=lambda one: getattr(one, "__name__", ""))
def test_line_is_found_and_the_training_is_as_without_a_replay(
    step: Step, marker: str, op: str, tmp_path: Path
) -> None:
    plain, _ = run_of(step, None)
    watched, event = run_of(step, tmp_path / "spool")

    assert event is not None and event.origin is not None, event and event.message
    assert (event.step, event.origin.op) == (BAD, op), event.message
    line = Path(__file__).read_text().splitlines()[event.stacks.forward[-1].line - 1]
    assert line.endswith(f"# {marker}"), event.message
    assert watched.kept == plain.kept
    for one, other in zip(states_of(watched), states_of(plain), strict=True):
        assert torch.equal(one.nan_to_num(nan=7.0), other.nan_to_num(nan=7.0))


def states_of(it: Translator) -> list[Tensor]:
    held = [*it.net.state_dict().values(), *it.critic.state_dict().values()]
    return [*held, *(state["momentum_buffer"] for state in it.opt_critic.state.values())]


def drawn_from_an_iterator(it: Translator, batch: Batch) -> None:
    it.waiting = iter([(batch[0], batch[1]), (batch[0], 7.0)])  # type: ignore[attr-defined]

    def step() -> Tensor:
        x, parts = next(it.waiting)  # type: ignore[attr-defined]
        return it.net(x).mean() / parts

    it.loss = step()
    it.update()
    it.seen.append(next(it.waiting)[1])  # type: ignore[attr-defined]


def test_iterator_of_the_script_is_not_read_by_a_replay_and_is_the_reason(tmp_path: Path) -> None:
    plain, _ = run_of(drawn_from_an_iterator, None)
    watched, event = run_of(drawn_from_an_iterator, tmp_path / "spool")

    assert watched.kept == plain.kept
    assert event is not None and event.origin is not None and event.noticed_at is not None
    assert "they read from an iterator, waiting, which cannot be read again" in event.message


def target_was_bad(it: Translator, batch: Batch) -> None:
    def compute() -> None:
        it.fake = it.net(batch[0])
        it.loss = (it.fake - it.real).abs().mean()

    it.set_input((batch[0] / batch[1], 1.0))
    compute()
    it.update()


def critic_was_bad(it: Translator, batch: Batch) -> None:
    if batch[1] == 0.0:
        with torch.no_grad():
            it.critic[2].weight[0, 0] = float("nan")
    it.set_input((batch[0], 1.0))
    it.forward()
    it.backward_net()
    it.opt.step()


def count_runs_on(it: Translator, batch: Batch) -> None:
    def compute() -> None:
        it.forwards += 1
        # Differs the second time: no line may be claimed of what does not come again.
        parts = 0.0 if it.forwards == BAD + 1 else 1.0
        it.loss = it.net(batch[0]).mean() / parts

    it.forward_calls = compute  # type: ignore[attr-defined]
    compute()
    it.update()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (target_was_bad, "was already non-finite"),
        (critic_was_bad, "the parameter `it.critic.2.weight` of another model in the loss was already"),
        (count_runs_on, "the lines of the loss"),
    ],
)
def test_no_line_is_claimed_of_what_was_bad_before_or_comes_out_otherwise(
    step: Step, words: str, tmp_path: Path
) -> None:
    plain, _ = run_of(step, None)
    watched, event = run_of(step, tmp_path / "spool")

    assert event is not None and words in event.message
    assert event.origin is None or "came in" in event.message or event.noticed_at is not None
    assert watched.kept == plain.kept
