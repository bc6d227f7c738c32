"""Parameters of every type and size; models converted, copied, saved and made anew while they are watched."""

import copy
import io
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from journals import read_journal
from reference import Scene, recorded
from small_training import batches, small_model
from torch import Tensor, nn
from torch.nn import functional as F

import probe


class Whole(nn.Module):
    """A model of one dtype; complex weights act on complex inputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5).to(dtype))
        self.large = nn.Parameter(torch.randn(5, 4000).to(dtype))
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))
        self.empty = nn.Parameter(torch.zeros(0, dtype=dtype))
        self.unused = nn.Parameter(torch.zeros(3, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight @ self.large) * self.scale + self.empty.sum()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]
)
def test_parameters_of_every_type_and_size_have_their_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Whole(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        with scene.watch(model, optimizer):
            for inputs, _ in batches(3):
                optimizer.zero_grad()
                scene.backward(model(inputs).abs().float().mean(), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.differences(frames=3) == []
    parameters = recording.journal.layouts[0].parameters
    assert [p.dtype for p in parameters] == [str(dtype).removeprefix("torch.")] * 5


def test_mixed_dtypes_in_one_model_keep_their_places(tmp_path: Path) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.complex64]
            self.parts = nn.ParameterList(torch.randn(4, 3).to(dtype) for dtype in dtypes)

        def forward(self, x: Tensor) -> Tensor:
            return sum((part * x.to(part.dtype)).abs().double().sum() for part in self.parts)  # type: ignore

    def loop(scene: Scene) -> nn.Module:
        model = Mixed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with scene.watch(model, optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                scene.backward(model(torch.ones(4, 3)), samples=4)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_gradients_whose_squares_overflow_have_a_finite_norm(tmp_path: Path, dtype: torch.dtype) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = nn.Linear(300, 100, bias=False).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with scene.watch(model, optimizer):
            for _ in range(2):
                optimizer.zero_grad()
                output = model(torch.full((1, 300), 200.0, dtype=dtype))
                output.backward(torch.full_like(output, 200.0))
                scene._samples = 1
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=2) == []


def test_model_moved_to_another_dtype_in_mid_run_is_measured_in_it(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(6)):
                dtype = [torch.float32, torch.float64, torch.bfloat16][index // 2]
                model.to(dtype)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs.to(dtype)).float(), targets)
                scene.backward(loss, samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=6) == []


def test_model_made_anew_and_watched_again_is_another_session(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        for _ in range(2):
            model = small_model()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scene.steps.clear()
            with scene.watch(model, optimizer):
                for inputs, targets in batches(3):
                    optimizer.zero_grad()
                    scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                    scene.note(model)
                    optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []
    assert len(list((tmp_path / "spool" / "run").glob("0-*"))) == 2


def test_average_of_the_weights_by_deepcopy_is_no_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            average: nn.Module = copy.deepcopy(model)
            swa = torch.optim.swa_utils.AveragedModel(model)
            for inputs, targets in batches(5):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
                swa.update_parameters(model)
                with torch.no_grad():
                    for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                        mean.lerp_(p, 0.1)
                    average(inputs)
                    swa(inputs)
                # A copy trained on its own is not the watched model.
                twin = copy.deepcopy(model)
                twin(inputs).square().sum().backward()
        return nn.ModuleList([model, average, swa])

    assert recorded(loop, tmp_path).differences(frames=5) == []


def test_model_saved_with_the_probe_attached_loads_where_there_is_no_probe(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    file, data = tmp_path / "model.pt", io.BytesIO()
    with probe.watch(model, optimizer, spool=tmp_path / "spool", run="run"), warnings.catch_warnings():
        warnings.simplefilter("error")
        F.cross_entropy(model(torch.ones(8, 6)), torch.zeros(8, dtype=torch.long)).backward()
        optimizer.step()
        torch.save({"model": model, "optimizer": optimizer.state_dict(), "whole": optimizer}, file)
        torch.save(model.state_dict(), data)
    script = (
        "import sys; sys.modules['probe'] = None\n"
        "import torch\n"
        f"loaded = torch.load({str(file)!r}, weights_only=False)\n"
        "print(sum(p.double().sum().item() for p in loaded['model'].parameters()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(sum(p.double().sum().item() for p in model.parameters()))


def test_watched_model_is_copied_while_a_step_is_under_way(tmp_path: Path) -> None:
    model = small_model()
    with probe.watch(model, spool=tmp_path, run="run"):
        model(torch.ones(8, 6)).sum().backward()
        twin = copy.deepcopy(model)
    assert "__call__" not in vars(twin)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in twin.modules())
    assert read_journal(tmp_path / "run").end is not None
