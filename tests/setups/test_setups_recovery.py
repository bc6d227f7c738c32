"""`watch(recovery=...)` in real set-ups: trainers, compiled models, compiled updates, shards.

One batch gives one parameter a NaN in its gradient. What follows is compared with the same trainer, in which
the action is taken by hand right before the update; or the action is declined, and an event says so.
"""

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from run_numbers import run_of
from thinned import thinned
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader

import probe
from probe import Recovery
from probe.wire import Event

pytestmark = [
    pytest.mark.usefixtures("one_thread", "nothing_switched_off"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
]
BAD, STEPS, ROWS = 4, 8, 4
MAX_NORM = 0.05
ACTIONS: dict[str, Any] = {
    "skip": "skip",
    "zero": "zero",
    "clip": Recovery(nonfinite="clip", max_norm=MAX_NORM),
    "rollback": Recovery(nonfinite="rollback", keep_state_every=2),
}
QUIET: dict[str, Any] = {"replay": False, "bundles": 0, "connect": ""}
Trained: TypeAlias = tuple[nn.Module, Optimizer]


class Net(nn.Module):
    """The derivative of its gate is NaN for rows that begin with 0; all others and the loss stay finite."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.gate = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.norm(torch.tanh(self.first(inputs)))
        logits = self.last(hidden) + torch.sqrt(self.gate.square() * inputs[:, :1].abs())
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def rows(*, micro_steps: int = 1) -> list[dict[str, Tensor]]:
    """Of all steps in order; those of one micro-step of the bad one begin with 0."""
    generator = torch.Generator().manual_seed(1)
    per_step = ROWS * micro_steps
    inputs = torch.randn(STEPS * per_step, 6, generator=generator)
    inputs[BAD * per_step : BAD * per_step + ROWS, 0] = 0.0
    return [{"inputs": row, "labels": torch.tensor(index % 3)} for index, row in enumerate(inputs)]


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(rows(**options), batch_size=ROWS)  # type: ignore[arg-type]


class ByHand:
    """What a script would have to do before each of its updates."""

    def __init__(self, action: str) -> None:
        self.action = action
        self._kept: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._good = 0

    def __call__(self, model: nn.Module, optimizer: Optimizer) -> None:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if all(bool(gradient.isfinite().all()) for gradient in gradients):
            if self._good % 2 == 0:
                self._kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
            self._good += 1
            return
        if self.action == "zero":
            for gradient in gradients:
                gradient.zero_()
            return
        if self.action == "clip":
            for gradient in gradients:
                torch.nan_to_num_(gradient, nan=0.0)
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            return
        if self.action == "rollback":
            assert self._kept is not None
            weights, state = copy.deepcopy(self._kept)
            model.load_state_dict(weights)
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        for parameter in model.parameters():
            parameter.grad = None


def states(trained: Trained) -> dict[str, Tensor]:
    """Parameters, buffers and the optimizer's tensors by name."""
    model, optimizer = trained
    state = optimizer.state_dict()["state"]
    of_optimizer = {f"{i} {name}": value for i, row in state.items() for name, value in row.items()}
    return {**model.state_dict(), **of_optimizer}


def assert_same(found: Trained, expected: Trained, *, rtol: float) -> None:
    one, other = states(found), states(expected)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.isfinite().all(), name
        if rtol:
            torch.testing.assert_close(value, other[name], rtol=rtol, atol=1e-7, msg=name)
        else:
            assert torch.equal(value, other[name]), name


def recoveries(spool: Path) -> list[Event]:
    return [event for event in run_of(spool).latest_events if event.kind == "recovery"]


def with_lightning(action: str, *, by_hand: bool) -> Trained:
    """Its closure is evaluated inside the optimizer's step; two micro-steps to each."""
    import lightning.pytorch as pl

    from probe.integrations.lightning import NanscopeCallback

    hand = ByHand(action)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss: Tensor = self.net(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

        def optimizer_step(self, epoch: int, index: int, optimizer: Any, closure: Any = None) -> None:
            def acted() -> Any:
                result = closure()
                if by_hand:
                    hand(self, optimizer.optimizer)
                return result

            optimizer.step(closure=acted)

    module = Module()
    callbacks = [] if by_hand else [NanscopeCallback(recovery=ACTIONS[action], **QUIET)]
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        enable_checkpointing=False,
        accumulate_grad_batches=2,
        callbacks=callbacks,
        **quiet,
    )
    trainer.fit(module, loader(micro_steps=2))
    return module.net, trainer.optimizers[0]


def with_huggingface(action: str, *, by_hand: bool, folder: Path) -> Trained:
    """It clips before each step, which spreads the NaN over all gradients."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from probe.integrations.huggingface import NanscopeCallback

    hand = ByHand(action)

    class Acts(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            hand(objects["model"], objects["optimizer"])

    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        per_device_train_batch_size=ROWS,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        learning_rate=0.01,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    callback = Acts() if by_hand else NanscopeCallback(recovery=ACTIONS[action], **QUIET)
    trainer = Trainer(Net(), arguments, train_dataset=rows(), callbacks=[callback])
    trainer.train()
    return trainer.model, trainer.optimizer


def with_accelerate(action: str, *, by_hand: bool) -> Trained:
    """Its optimizer is a wrapper, which steps at the second micro-step."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from probe.integrations.accelerate import watch

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    hand, inner = ByHand(action), Net()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    model, wrapper, batches = accelerator.prepare(inner, optimizer, loader(micro_steps=2))
    run = None if by_hand else watch(accelerator, model, wrapper, recovery=ACTIONS[action], **QUIET)
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            if by_hand and accelerator.sync_gradients:
                hand(inner, optimizer)
            wrapper.step()
            wrapper.zero_grad()
    if run is not None:
        accelerator.end_training()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return inner, optimizer


def with_compiled_model(action: str, *, by_hand: bool) -> Trained:
    """By hand the same operations are run without a compiler."""
    torch._dynamo.reset()
    hand, model = ByHand(action), Net()
    compiled: Any = model if by_hand else torch.compile(model, backend="eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = None if by_hand else probe.watch(compiled, optimizer, recovery=ACTIONS[action], **QUIET)
    for batch in loader():
        optimizer.zero_grad()
        compiled(**batch)["loss"].backward()
        if by_hand:
            hand(model, optimizer)
        optimizer.step()
    if run is not None:
        run.close()
    torch._dynamo.reset()
    return model, optimizer


SETUPS: dict[str, Callable[..., Trained]] = {
    "Lightning": with_lightning,
    "Hugging Face": with_huggingface,
    "Accelerate": with_accelerate,
    "compiled model": with_compiled_model,
}


@pytest.mark.parametrize(("setup", "action"), thinned(list(SETUPS), list(ACTIONS), every=2))
def test_recovery_leaves_what_the_same_action_by_hand_leaves(
    setup: str, action: str, spool: Path, tmp_path: Path
) -> None:
    options = {"folder": tmp_path} if setup == "Hugging Face" else {}
    watched = SETUPS[setup](action, by_hand=False, **options)
    assert_same(
        watched, SETUPS[setup](action, by_hand=True, **options), rtol=1e-5 if action == "clip" else 0.0
    )
    (event,) = recoveries(spool)
    assert (event.subject, event.step) == (action, BAD)


def train_compiled(how: str, *, watched: bool) -> Trained:
    """Only the update is compiled, or the whole step with it; without the probe nothing is."""
    torch._dynamo.reset()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch: dict[str, Tensor]) -> None:
        model(**batch)["loss"].backward()
        optimizer.step()

    compiled: Any = optimizer.step if how == "update" else step
    if watched:
        compiled = torch.compile(compiled, backend="eager")
    run = probe.watch(model, optimizer, recovery="skip", **QUIET) if watched else None
    for batch in loader():
        optimizer.zero_grad()
        if how == "update":
            model(**batch)["loss"].backward()
            compiled()
        else:
            compiled(batch)
    if run is not None:
        run.close()
    torch._dynamo.reset()
    return model, optimizer


@pytest.mark.parametrize("how", ["update", "whole step"])
def test_recovery_declines_a_compiled_update_and_says_what_to_do(how: str, spool: Path) -> None:
    found, expected = (states(train_compiled(how, watched=watched)) for watched in (True, False))
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert not found["gate"].isfinite().any()
    # As soon as two updates have come unseen, whatever is wrong with them.
    (event,) = recoveries(spool)
    assert (event.subject, event.severity, event.step) == ("declined", "warning", 1)
    assert "a compiled optimizer.step" in event.message
    assert "Compile the model alone and call optimizer.step as it is" in event.message


def test_recovery_leaves_an_overflow_to_the_scaler_of_a_trainer(spool: Path) -> None:
    """Lightning's mixed precision: the scaler leaves the update out, and nothing is told of a recovery."""
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.precision import MixedPrecision

    from probe.integrations.lightning import NanscopeCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> Tensor:
            loss: Tensor = self.net(**batch)["loss"]
            return loss * 1e37 if index == BAD else loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        enable_checkpointing=False,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
        callbacks=[NanscopeCallback(recovery="skip", **QUIET)],
        **quiet,
    )
    module = Module()
    data = [{**row, "inputs": row["inputs"].clamp(min=0.1)} for row in rows()]
    trainer.fit(module, DataLoader(data, batch_size=ROWS))  # type: ignore[arg-type]
    assert scaler.get_scale() == 512.0
    assert all(bool(parameter.isfinite().all()) for parameter in module.parameters())
    assert recoveries(spool) == []


def test_end_of_an_accelerated_run_leaves_the_step_of_another_thread_alone() -> None:
    """torch goes through the hooks of all, and raises where one was added or removed meanwhile."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from probe.integrations.accelerate import watch

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(Net(), torch.optim.SGD(Net().parameters(), lr=0.1))
    stranger = Net()
    other = torch.optim.SGD(stranger.parameters(), lr=0.1)
    inside, ended, raised = threading.Event(), threading.Event(), []

    def wait(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        if stepping is other:
            inside.set()
            assert ended.wait(30)

    def train() -> None:
        try:
            stranger(**next(iter(loader())))["loss"].backward()
            other.step()
        except RuntimeError as error:
            raised.append(error)

    handle = register_optimizer_step_post_hook(wait)
    with probe.watch(stranger, other, **QUIET):
        run = watch(accelerator, model, optimizer, **QUIET)
        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        assert inside.wait(30)
        run.close()
        ended.set()
        thread.join(30)
    handle.remove()
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert raised == [] and not thread.is_alive()
