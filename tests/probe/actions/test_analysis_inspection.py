"""`inspect_model`: right counts and shapes, and everything as it was before."""

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from journals import read_journal
from planted_models import Mixed, backward, chain
from torch import Tensor, nn

import probe
from probe import inspect_model


class Restless(nn.Module):
    """Its forward changes everything that it can reach."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.history: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += 1
        self.history.append(random.random())
        np.random.rand()
        self.drop.train(not self.drop.training)
        return self.drop(self.norm(self.linear(x)))


def state_of(model: nn.Module) -> dict[str, object]:
    """Everything that a forward could change, as bytes and plain values."""
    return {
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()},
        "identities": {name: id(t) for name, t in [*model.named_parameters(), *model.named_buffers()]},
        "versions": {name: t._version for name, t in [*model.named_parameters(), *model.named_buffers()]},
        "gradients": {n: None if p.grad is None else p.grad.tolist() for n, p in model.named_parameters()},
        "flags": [module.training for module in model.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "grad mode": torch.is_grad_enabled(),
    }


def test_inspection_leaves_model_and_process_bit_identical() -> None:
    model = Restless()
    backward(model, torch.randn(8, 4))
    model.norm.eval()
    before = state_of(model) | {"calls": model.calls, "history": list(model.history)}
    inspect_model(model, torch.ones(8, 4))
    assert state_of(model) | {"calls": model.calls, "history": model.history} == before


def test_inspection_that_fails_leaves_everything_too() -> None:
    model = nn.Sequential(Restless(), nn.Linear(5, 1))
    before = state_of(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        inspect_model(model, torch.ones(8, 4))
    assert state_of(model) == before


def test_inspection_is_not_a_step_of_a_watching_session() -> None:
    model = chain(4, 4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        inspect_model(model, torch.ones(7, 4))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        folder = Path(os.environ["NANSCOPE_SPOOL"]) / run.run
    (frame,) = read_journal(folder).frames
    assert frame.scalars["samples"] == 2


def test_inspection_keeps_its_forward_from_a_session_even_if_the_model_keeps_its_output() -> None:
    kept: list[Tensor] = []

    class Keeping(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            kept.append(super().forward(x))
            return kept[-1]

    model = Keeping(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer) as run:
        inspect_model(model, torch.ones(7, 4))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        folder = Path(os.environ["NANSCOPE_SPOOL"]) / run.run
    (frame,) = read_journal(folder).frames
    assert frame.scalars["samples"] == 2


def test_inspection_counts_no_buffer_that_autograd_saves() -> None:
    model = nn.Sequential(nn.BatchNorm1d(1000)).eval()
    report = inspect_model(model, torch.ones(2, 1000))
    assert report.memory is not None and report.memory.activations == 0


def test_inspection_counts_shared_parameters_once() -> None:
    model = Mixed()
    report = inspect_model(model)
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert report.shared == 1
    assert report.memory is not None
    assert report.memory.parameters == sum(p.numel() * p.element_size() for p in model.parameters())
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.capability(30)
def test_inspection_has_shapes_and_calls_of_every_module() -> None:
    report = inspect_model(Mixed(), torch.tensor([[1, 2, 3]]))
    rows = {row.name: row for row in report.modules}
    assert rows["table"].input_shapes == ((1, 3),) and rows["table"].output_shapes == ((1, 3, 4),)
    assert rows["head"].output_shapes == ((1, 3, 11),) and rows["head"].output_bytes == 3 * 11 * 4
    assert rows["unused"].calls == 0
    assert any("not called in this forward: unused" in note for note in report.notes)


@pytest.mark.capability(30)
def test_inspection_measures_what_autograd_saves() -> None:
    model = nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 2))
    report = inspect_model(model, torch.ones(16, 4))
    assert report.memory is not None
    # ReLU saves its result, which the second Linear saves too; inputs and weights do not count.
    assert report.memory.activations == 16 * 1000 * 4
    assert report.memory.outputs == (16 * 1000 + 16 * 1000 + 16 * 2) * 4


@pytest.mark.capability(30)
def test_inspection_components_share_the_parameters() -> None:
    model = Mixed()
    components = {c.name: c for c in inspect_model(model).components}
    assert sum(c.parameters for c in components.values()) == sum(p.numel() for p in model.parameters())
    assert sum(c.share for c in components.values()) == pytest.approx(1.0)
    assert components["table"].parameters == 44 and components["(root)"].parameters == 4


def test_inspection_without_an_input_knows_no_activations() -> None:
    report = inspect_model(chain(2, 3, 1))
    assert report.memory is not None and report.memory.activations is None
    assert all(row.calls is None for row in report.modules)


def test_inspection_notes_mixed_modes_and_dtypes() -> None:
    model = chain(2, 3, 1)
    model[0].eval()
    model[2].to(torch.bfloat16)
    notes = " ".join(inspect_model(model).notes)
    assert "in evaluation mode 0" in notes and "bfloat16, float32" in notes


@pytest.mark.parametrize("given", [(torch.ones(2, 3), 5.0), {"x": torch.ones(2, 3), "factor": 5.0}])
def test_inspection_takes_positional_and_keyword_arguments(given: object) -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, factor: float) -> Tensor:
            return x * factor

    assert inspect_model(Scaled(), given).modules[0].output_shapes == ((2, 3),)


def test_inspection_takes_a_packed_sequence_as_one_argument() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(5, 3, 4), [5, 4, 2])
    (row,) = inspect_model(nn.LSTM(4, 6), packed).modules
    assert row.input_shapes[0] == (11, 4) and row.output_shapes[0] == (11, 6)


def test_inspection_looks_through_compile_and_adds_no_graph() -> None:
    compiled_frames = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        compiled_frames.append(graph)
        return graph.forward

    model = torch.compile(chain(3, 3, 1), backend=backend)
    model(torch.ones(2, 3))
    inspect_model(model, torch.ones(2, 3))
    model(torch.ones(2, 3))
    torch._dynamo.reset()
    assert len(compiled_frames) == 1


def test_inspection_declines_a_lazy_module_and_fsdp() -> None:
    with pytest.raises(ValueError, match="run one forward first"):
        inspect_model(nn.LazyLinear(3))

    class FSDPModule(nn.Module):
        pass

    with pytest.raises(ValueError, match="without an input"):
        inspect_model(FSDPModule(), torch.ones(1))
