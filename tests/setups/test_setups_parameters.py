"""Sparse, tied, frozen, adapted, absent, recurrent and checkpointed parameters."""

from pathlib import Path
from typing import Any

import pytest
import torch
from reference import Scene, layer, recorded
from small_training import batches, small_model
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class Words(nn.Module):
    """Embedding and head, tied if asked for."""

    def __init__(self, *, sparse: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 5, sparse=sparse)
        self.mix = nn.Linear(5, 5)
        self.head = nn.Linear(5, 11, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        mixed: Tensor = self.head(torch.tanh(self.mix(self.table(words)).mean(1)))
        return mixed


def word_loop(scene: Scene, model: Words, optimizers: list[torch.optim.Optimizer]) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    with scene.watch(model):
        for number in range(4):
            # Words come twice in a row, so that a sparse gradient has an entry twice.
            words = torch.randint(11, (8, 3), generator=generator).repeat(1, 2)
            targets = torch.randint(11, (8,), generator=generator)
            model.zero_grad()
            scene.backward(F.cross_entropy(model(words), targets), samples=8)
            for index, optimizer in enumerate(optimizers):
                scene.note(model, number=number)
                if index:
                    # The second optimizer's frame has no backward of its own.
                    scene.steps[-1].loss = scene.steps[-1].raw = None
                    scene.steps[-1].samples = 0
                optimizer.step()
    return model


def test_sparse_gradient_with_repeated_entries_is_measured_as_the_dense_one(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Words(sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        word_loop(scene, model, [optimizer])
        assert model.table.weight.grad is not None
        assert not model.table.weight.grad.is_coalesced()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_sparse_adam_beside_adam_is_one_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Words(sparse=True)
        dense = [*model.mix.parameters(), *model.head.parameters()]
        optimizers = [torch.optim.SparseAdam(model.table.parameters()), torch.optim.Adam(dense)]
        return word_loop(scene, model, optimizers)

    recording = recorded(loop, tmp_path)
    assert recording.disturbances == []
    assert [frame.step for frame in recording.journal.frames] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_tied_weights_are_one_row_with_the_summed_gradient(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Words(tied=True)
        return word_loop(scene, model, [torch.optim.Adam(model.parameters())])

    recording = recorded(loop, tmp_path)
    assert recording.differences(frames=4) == []
    parameters = recording.journal.layouts[0].parameters
    assert [p.name for p in parameters] == ["table.weight", "mix.weight", "mix.bias"]


class Adapter(nn.Module):
    """A frozen linear layer with a trainable update of rank two beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + x @ self.down.T @ self.up.T
        return result


def test_adapters_on_frozen_layers_are_the_rows(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = nn.Sequential(Adapter(nn.Linear(6, 16)), nn.ReLU(), Adapter(nn.Linear(16, 3)))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.differences(frames=4) == []
    assert [p.name for p in recording.journal.layouts[0].parameters] == ["0.down", "0.up", "2.down", "2.up"]


def test_layer_unfrozen_with_its_optimizer_group_is_recorded_from_its_first_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        layer(model, 0).requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(5)):
                if index == 2:
                    layer(model, 0).requires_grad_(True)
                    optimizer.add_param_group({"params": layer(model, 0).parameters()})
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.differences(frames=5) == []
    rows = {layout.layout: len(layout.parameters) for layout in recording.journal.layouts}
    every = len(list(small_model().parameters()))
    assert [rows[frame.layout] for frame in recording.journal.frames] == [every - 2] * 2 + [every] * 3


def test_layer_frozen_in_mid_run_keeps_its_rows_and_is_missing(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(5)):
                if index == 2:
                    layer(model, 0).requires_grad_(False)
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.differences(frames=5) == []
    assert recording.journal.frames[-1].missing != b""


class Experts(nn.Module):
    """Each batch goes to one of three experts; the others have no gradient in that step."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))

    def forward(self, x: Tensor, chosen: int) -> Tensor:
        result: Tensor = self.experts[chosen](x)
        return result


@pytest.mark.parametrize("set_to_none", [True, False])
def test_expert_that_was_not_chosen_is_missing_or_zero_as_torch_has_it(
    tmp_path: Path, set_to_none: bool
) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Experts()
        optimizer = torch.optim.Adam(model.parameters())
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(7)):
                optimizer.zero_grad(set_to_none=set_to_none)
                scene.backward(F.cross_entropy(model(inputs, index % 3), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=7) == []


class Packed(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.core = kind(4, 6, num_layers=2, batch_first=True, bidirectional=True)  # type: ignore[call-arg]
        self.head = nn.Linear(12, 3)

    def forward(self, packed: Any) -> Tensor:
        hidden, lengths = pad_packed_sequence(self.core(packed)[0], batch_first=True)
        result: Tensor = self.head(hidden.sum(1) / lengths[:, None])
        return result


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_model_on_packed_sequences_has_every_gradient(
    tmp_path: Path, kind: type[nn.RNNBase]
) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Packed(kind)
        optimizer = torch.optim.Adam(model.parameters())
        with scene.watch(model, optimizer):
            for index in range(3):
                generator = torch.Generator().manual_seed(index)
                values = torch.randn(4, 5, 4, generator=generator)
                packed = pack_padded_sequence(values, torch.tensor([5, 4, 2, 1]), batch_first=True)
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(packed), torch.tensor([0, 1, 2, 0])), samples=4)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.inner = nn.Linear(6, 16), small_inner()
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        result: Tensor = self.last(hidden)
        return result


def small_inner() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_is_one_forward_and_one_backward(tmp_path: Path, reentrant: bool) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Checkpointed(reentrant=reentrant)
        optimizer = torch.optim.Adam(model.parameters())
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(6)):
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                if index % 2:
                    scene.note(model)
                    optimizer.step()
                    optimizer.zero_grad()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_watched_root_that_is_itself_checkpointed_is_one_forward(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_inner()
        optimizer = torch.optim.Adam(model.parameters())
        with scene.watch(model, optimizer):
            for index in range(3):
                inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(index))
                optimizer.zero_grad()
                output = checkpoint(model, inputs.requires_grad_(), use_reentrant=False)
                scene.backward(output.square().mean(), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []
