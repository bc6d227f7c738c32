"""The Hugging Face callback with the real `Trainer` on tiny models made from configs."""

import copy
import gc
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradient_sums import GradientSums
from progress_documents import progress_of
from run_numbers import norms_of, run_of, runs_of, scalars_of, steps_of
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

import probe
from probe.integrations import huggingface as integration
from probe.integrations.huggingface import NanscopeCallback

pytestmark = pytest.mark.usefixtures("one_thread", "nothing_switched_off")

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
TEXT = {
    "vocab_size": 50,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    options = {key: value for key, value in TEXT.items() if key != "max_position_embeddings"}
    return GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, loss_type="ForCausalLM", **options)
    )


def llama() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **TEXT))


def bert() -> nn.Module:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES, **TEXT))


def texts(samples: int = 16) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 50, (samples, 8), generator=generator)
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


def reviews(samples: int = 16) -> list[dict[str, Tensor]]:
    rows = texts(samples)
    return [{"input_ids": row["input_ids"], "labels": torch.tensor(i % 2)} for i, row in enumerate(rows)]


class Classifier(nn.Module):
    """No model of the library: without `**kwargs`, so that the trainer itself divides its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embedding(input_ids).mean(1))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class NotingTrainer(Trainer):
    """Notes what each of its training steps returned and the gradients that it gave."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.losses: list[float] = []
        self.sums = GradientSums(self.model)

    def training_step(self, *arguments: Any, **options: Any) -> Tensor:
        loss = super().training_step(*arguments, **options)
        self.losses.append(loss.item())
        return loss

    @property
    def logged(self) -> list[dict[str, float]]:
        """What the trainer itself says of every step."""
        return [entry for entry in self.state.log_history if "loss" in entry]


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """A trainer is a cycle, and holds its callbacks."""
    yield
    gc.collect()


def arguments_in(tmp_path: Path, **options: Any) -> TrainingArguments:
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1}
    defaults = {"use_cpu": True, "per_device_train_batch_size": 2, "num_train_epochs": 1, **quiet}
    return TrainingArguments(output_dir=str(tmp_path / "out"), **{**defaults, **options})


@pytest.mark.capability(63, 66)
def test_huggingface_progress_is_that_of_the_trainer(tmp_path: Path, spool: Path) -> None:
    train(tmp_path, Classifier(), reviews(), num_train_epochs=2, gradient_accumulation_steps=2)
    first, last = progress_of(spool)[0], progress_of(spool)[-1]
    assert (first.total_steps, first.total_epochs, first.is_estimate) == (8, 2, False)
    assert (last.step, last.epoch, last.steps_before, last.ended) == (8, 2.0, 0, True)


def test_huggingface_training_of_so_many_steps_has_no_number_of_epochs(tmp_path: Path, spool: Path) -> None:
    train(tmp_path, Classifier(), reviews(), max_steps=3)
    last = progress_of(spool)[-1]
    assert (last.step, last.total_steps, last.total_epochs, last.epoch) == (3, 3, None, 1.0)


def make_trainer(tmp_path: Path, model: nn.Module, data: Any, **options: Any) -> NotingTrainer:
    return NotingTrainer(
        model,
        arguments_in(tmp_path, **options),
        train_dataset=data,
        eval_dataset=data,
        callbacks=[NanscopeCallback(overhead_limit=0)],
    )


def train(tmp_path: Path, model: nn.Module, data: Any, **options: Any) -> NotingTrainer:
    trainer = make_trainer(tmp_path, model, data, **options)
    trainer.train()
    return trainer


@pytest.mark.parametrize(("make", "data"), [(gpt2, texts), (llama, texts), (bert, reviews)])
def test_huggingface_step_is_what_the_trainer_logs(tmp_path: Path, spool: Path, make: Any, data: Any) -> None:
    trainer = train(tmp_path, make(), data())
    run = run_of(spool)
    assert steps_of(run) == list(range(8))
    assert scalars_of(run, "samples") == [2] * 8
    np.testing.assert_allclose(
        scalars_of(run, "loss"), [entry["loss"] for entry in trainer.logged], rtol=1e-6
    )
    norms = [entry["grad_norm"] for entry in trainer.logged]
    np.testing.assert_allclose(scalars_of(run, "grad_norm"), norms, rtol=1e-5)


def test_huggingface_gradients_are_measured_before_clipping(tmp_path: Path, spool: Path) -> None:
    trainer = train(tmp_path, llama(), texts(), max_grad_norm=0.01)
    run = run_of(spool)
    assert np.linalg.norm(norms_of(run), axis=1).min() > 0.01
    np.testing.assert_allclose(norms_of(run), trainer.sums.norms(), rtol=1e-5)


@pytest.mark.parametrize("level", ["basic", "extreme"])
def test_huggingface_training_is_bit_identical_with_the_callback(tmp_path: Path, level: str) -> None:
    plain, watched = gpt2(), gpt2()
    arguments = arguments_in(tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.5)
    for model, callbacks in ((plain, []), (watched, [NanscopeCallback(level=level, overhead_limit=0)])):
        Trainer(model, arguments, train_dataset=texts(), callbacks=callbacks).train()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, watched.state_dict()[name]), name


def test_huggingface_accumulation_over_tokens_is_one_step_with_the_summed_loss(
    tmp_path: Path, spool: Path
) -> None:
    trainer = train(tmp_path, llama(), texts(), gradient_accumulation_steps=4)
    run = run_of(spool)
    assert steps_of(run) == [0, 1]
    assert scalars_of(run, "samples") == [8, 8]
    np.testing.assert_allclose(
        scalars_of(run, "loss"), [entry["loss"] for entry in trainer.logged], rtol=1e-6
    )
    np.testing.assert_allclose(norms_of(run), trainer.sums.norms(per_step=4), rtol=1e-5)


def test_huggingface_accumulation_over_batches_has_its_divisor_undone(tmp_path: Path, spool: Path) -> None:
    trainer = train(tmp_path, Classifier(), reviews(), gradient_accumulation_steps=4)
    run = run_of(spool)
    assert steps_of(run) == [0, 1]
    means = [entry["loss"] for entry in trainer.logged]
    np.testing.assert_allclose(scalars_of(run, "loss_raw"), means, rtol=1e-6)
    np.testing.assert_allclose(scalars_of(run, "loss"), means, rtol=1e-6)


def test_huggingface_label_smoothing_is_in_the_loss(tmp_path: Path, spool: Path) -> None:
    plain = train(tmp_path, llama(), texts()).losses
    smoothed = train(tmp_path, llama(), texts(), label_smoothing_factor=0.3).losses
    assert plain != pytest.approx(smoothed, rel=1e-3)
    recorded = [scalars_of(run, "loss") for run in runs_of(spool)]
    assert recorded == [pytest.approx(plain, rel=1e-6), pytest.approx(smoothed, rel=1e-6)]


def test_huggingface_bf16_records_the_loss_and_the_gradients_of_autocast(tmp_path: Path, spool: Path) -> None:
    trainer = train(tmp_path, llama(), texts(), bf16=True)
    run = run_of(spool)
    assert steps_of(run) == list(range(8))
    np.testing.assert_allclose(scalars_of(run, "loss"), trainer.losses, rtol=1e-6)
    np.testing.assert_allclose(norms_of(run), trainer.sums.norms(), rtol=1e-5)


class Poisoned(Classifier):
    """Takes the root of something negative in the fourth batch of training."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.root = Root(self)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += torch.is_grad_enabled()
        logits = self.head(self.root(self.embedding(input_ids).mean(1)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Root(nn.Module):
    def __init__(self, owner: Poisoned) -> None:
        super().__init__()
        self.owner = [owner]

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.sqrt(inputs - 9) if self.owner[0].calls == 4 else inputs


def test_huggingface_nan_that_the_trainers_log_hides_is_recorded(tmp_path: Path, spool: Path) -> None:
    trainer = train(tmp_path, Poisoned(), reviews(), max_steps=4, logging_nan_inf_filter=True)
    assert np.isfinite([entry["loss"] for entry in trainer.logged]).all()
    losses = scalars_of(run_of(spool), "loss")
    assert np.isnan(losses).tolist() == [False, False, False, True]


def poison_llama(model: Any) -> None:
    """Make the norm of the second layer divide by the root of something negative from the third call on."""
    norm = model.model.layers[1].post_attention_layernorm
    norm.register_buffer("calls", torch.zeros(()))
    plain = type(norm).forward

    def forward(inputs: Tensor) -> Tensor:
        norm.calls += 1
        return plain(norm, torch.log(-inputs.abs()) if norm.calls == 3 else inputs)

    norm.forward = forward


def test_huggingface_origin_in_a_model_of_the_library_is_named(tmp_path: Path, spool: Path) -> None:
    model = llama()
    poison_llama(model)
    train(tmp_path, model, texts())
    (event,) = [event for event in run_of(spool).latest_events if event.kind == "nonfinite_loss"]
    assert event.origin is not None
    assert event.step == 2
    assert event.origin.op == "log"
    assert event.origin.module == "model.layers.1.post_attention_layernorm"


def test_huggingface_evaluation_makes_no_step_and_logs_its_metrics(tmp_path: Path, spool: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 5}
    trainer = train(tmp_path, bert(), reviews(), **options)
    run = run_of(spool)
    assert scalars_of(run, "samples") == [2] * 8
    evaluated = {
        entry["step"] - 1: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry
    }
    assert set(evaluated) == {2, 5, 7}
    recorded = dict(enumerate(scalars_of(run, "log/eval_loss")))
    assert {step: loss for step, loss in recorded.items() if loss is not None} == evaluated
    assert [name for name in run.frames[2].scalars if name.startswith("log/eval")] == ["log/eval_loss"]


def test_huggingface_progress_is_what_the_trainer_logs(tmp_path: Path, spool: Path) -> None:
    options = {"lr_scheduler_type": "cosine", "warmup_steps": 2, "learning_rate": 0.01}
    trainer = train(tmp_path, bert(), reviews(), gradient_accumulation_steps=2, num_train_epochs=2, **options)
    run = run_of(spool)
    assert (
        scalars_of(run, "log/global_step") == [entry["step"] for entry in trainer.logged] == list(range(1, 9))
    )
    assert scalars_of(run, "log/epoch") == [entry["epoch"] for entry in trainer.logged]
    assert scalars_of(run, "lr") == [entry["learning_rate"] for entry in trainer.logged]
    assert scalars_of(run, "log/max_steps") == [8] * 8
    epochs = {number: step for step, number in enumerate(scalars_of(run, "epoch")) if number is not None}
    assert epochs == {1: 3, 2: 7}, "the latest word on each"


def test_huggingface_resumed_training_is_a_run_of_its_own(tmp_path: Path, spool: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 4, "num_train_epochs": 1}
    train(tmp_path, bert(), reviews(), **options)
    trainer = make_trainer(tmp_path, bert(), reviews(), **options)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    before, after = runs_of(spool)
    assert scalars_of(after, "log/global_step") == [5, 6, 7, 8]
    np.testing.assert_allclose(scalars_of(after, "loss"), scalars_of(before, "loss")[4:], rtol=1e-5)


def test_huggingface_train_twice_makes_two_finished_runs(tmp_path: Path, spool: Path) -> None:
    trainer = train(tmp_path, bert(), reviews())
    trainer.train()
    runs = runs_of(spool)
    assert [run.end and run.end.outcome for run in runs] == ["finished", "finished"]
    recorded = [loss for run in runs for loss in scalars_of(run, "loss")]
    np.testing.assert_allclose(recorded, trainer.losses, rtol=1e-6)


class FailingData(list[dict[str, Tensor]]):
    def __init__(self, error: BaseException) -> None:
        super().__init__(reviews())
        self.error, self.taken = error, 0

    def __getitem__(self, index: Any) -> Any:
        self.taken += 1
        if self.taken > 6:
            raise self.error
        return super().__getitem__(index)


def test_huggingface_exception_is_recorded_and_raised(tmp_path: Path, spool: Path) -> None:
    with pytest.raises(RuntimeError, match="no more data"):
        train(tmp_path, bert(), FailingData(RuntimeError("no more data")))
    run = run_of(spool)
    (event,) = [event for event in run.latest_events if event.kind == "exception"]
    assert "no more data" in event.message
    assert run.end is not None
    assert run.end.outcome == "exception"


def test_huggingface_keyboard_interrupt_finishes_the_run(tmp_path: Path, spool: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, bert(), FailingData(KeyboardInterrupt()))
    run = run_of(spool)
    assert run.end is not None
    assert (run.end.outcome, run.latest_events) == ("finished", [])


def test_huggingface_trainer_is_as_before_once_the_callback_is_gone(tmp_path: Path) -> None:
    plain = Trainer.train
    callback = NanscopeCallback()
    assert Trainer.train is not plain
    del callback
    gc.collect()
    assert Trainer.train is plain


def test_huggingface_anomaly_error_reaches_the_script(tmp_path: Path, spool: Path) -> None:
    callbacks = [NanscopeCallback(mode="raise", overhead_limit=0)]
    trainer = Trainer(Poisoned(), arguments_in(tmp_path), train_dataset=reviews(), callbacks=callbacks)
    with pytest.raises(probe.AnomalyError):
        trainer.train()
    assert run_of(spool).end is not None


def test_huggingface_callback_that_is_switched_off_does_nothing(
    tmp_path: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NANSCOPE_OFF", "1")
    plain = Trainer.train
    trainer = make_trainer(tmp_path, bert(), reviews())
    assert Trainer.train is plain
    trainer.train()
    assert not spool.exists()


def test_huggingface_copy_of_the_callback_has_no_session(tmp_path: Path) -> None:
    trainer = train(tmp_path, bert(), reviews())
    (callback,) = [item for item in trainer.callback_handler.callbacks if isinstance(item, NanscopeCallback)]
    assert callback.run is not None
    assert copy.deepcopy(callback).run is None


def test_huggingface_option_out_of_range_raises_at_once() -> None:
    with pytest.raises(ValueError, match="max_replays"):
        NanscopeCallback(max_replays=-1)


def test_huggingface_documented_lines_attach(tmp_path: Path, spool: Path) -> None:
    (lines,) = re.findall(r"\n\n((?:    .*\n)+)", integration.__doc__ or "")
    names = {"Trainer": Trainer, "model": bert(), "args": arguments_in(tmp_path), "data": reviews()}
    exec(textwrap.dedent(lines), names)  # noqa: S102 - our own documentation
    names["trainer"].train()
    assert len(run_of(spool).frames) == 8
