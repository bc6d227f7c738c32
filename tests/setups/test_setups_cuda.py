"""CUDA: the same numbers as on the CPU, side streams, scalers and graphs. Skipped where there is no GPU."""

import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from cuda_waits import cuda_waits_are_errors
from journals import read_journal
from reference import Scene, recorded
from small_training import batches, small_model
from torch import nn
from torch.nn import functional as F

import probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"),
]


def device_model() -> nn.Sequential:
    return small_model().to("cuda")


@pytest.mark.parametrize("fused", [False, True])
def test_loop_on_a_gpu_has_every_number_of_its_gradients(tmp_path: Path, fused: bool) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = device_model()
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(inputs.cuda()), targets.cuda())
                scene.backward(loss, samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_scaled_half_precision_on_a_gpu_is_measured_unscaled(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = device_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16):
                    loss = F.cross_entropy(model(inputs.cuda()), targets.cuda())
                scene.backward(loss, raw=scaler.scale(loss), samples=8)
                scaler.unscale_(optimizer)
                scene.note(model, stage="unscaled")
                scaler.step(optimizer)
                scaler.update()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_step_on_a_side_stream_is_measured_after_its_backward(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = device_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                with torch.cuda.stream(stream):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(inputs.cuda()), targets.cuda())
                    scene.backward(loss, samples=8)
                    scene.note(model)
                    optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_model_moved_to_the_gpu_in_mid_run_keeps_its_rows(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(4)):
                device = "cuda" if index > 1 else "cpu"
                model.to(device)
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs.to(device)), targets.to(device)), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_whole_step_captured_in_a_graph_is_left_alone(tmp_path: Path) -> None:
    """Reading a number would break the capture, and a replay runs no Python: the warm-up is recorded."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.ones(8, 6, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with probe.watch(model, optimizer, spool=tmp_path, run="run"), warnings.catch_warnings():
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad()
        with torch.cuda.graph(graph):
            model(inputs).square().mean().backward()
            optimizer.step()
        before = model[0].weight.detach().clone()
        for _ in range(3):
            graph.replay()
        assert not torch.equal(before, model[0].weight)
    journal = read_journal(tmp_path / "run")
    assert [frame.step for frame in journal.frames][:3] == [0, 1, 2]
    assert not any("probe_failures" in frame.scalars for frame in journal.frames)


def test_late_verdict_waits_for_no_device(tmp_path: Path) -> None:
    """torch raises at every wait; the steps are those between two samples of activations."""
    model = device_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(inputs.cuda(), targets.cuda()) for inputs, targets in batches(95)]
    with probe.watch(model, optimizer, spool=tmp_path, run="run", verdict="after_update"):
        for step, (inputs, targets) in enumerate(data):
            with cuda_waits_are_errors() if 60 <= step < 90 else nullcontext():
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    frames = read_journal(tmp_path / "run").frames
    # What is added to a step later, such as how far its update went, has a frame of its own.
    assert [frame.step for frame in frames if frame.columns] == list(range(95))
    assert not any("probe_failures" in frame.scalars for frame in frames)
    assert all("grad_norm" in frame.scalars for frame in frames if frame.columns)


@pytest.mark.parametrize("verdict", ["auto", "after_update"])
def test_late_verdict_has_every_number_of_its_gradients(tmp_path: Path, verdict: str) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = device_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer, verdict=verdict):
            for inputs, targets in batches(60):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs.cuda()), targets.cuda()), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=60) == []
