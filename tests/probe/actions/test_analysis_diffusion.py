"""Diffusion pipelines of the real package: what they consist of, and latents against their scheduler."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_diffusion as tiny
import torch
from journals import read_journal
from torch import Tensor, nn

import probe
from probe.actions.analysis.diffusion_samplings import HISTORY, monitor
from probe.delivery.journal.journal_reader import read_stream
from probe.wire import Document, decode_record
from probe.wire.denoising import DENOISING_KIND, DenoisingBody
from probe.wire.documents import read_body

# Schedulers of diffusers hand tensors to numpy in a way that new numpy complains about.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
SCHEDULERS = {
    "DDPMScheduler": "variance_preserving",
    "DDIMScheduler": "variance_preserving",
    "DPMSolverMultistepScheduler": "variance_preserving",
    "EulerDiscreteScheduler": "variance_exploding",
    "EulerAncestralDiscreteScheduler": "variance_exploding",
    "HeunDiscreteScheduler": "variance_exploding",
    "FlowMatchEulerDiscreteScheduler": "flow",
}


@pytest.fixture(autouse=True)
def fresh_counts() -> Iterator[None]:
    monitor.clear()
    yield
    monitor.clear()


def numel(model: nn.Module) -> int:
    return sum(math.prod(parameter.shape) for parameter in model.parameters())


# -- the pipeline


@pytest.mark.capability(74)
def test_pipeline_report_has_each_component_with_its_size() -> None:
    pipeline = tiny.latent_pipeline()
    pipeline.vae.half()
    report = probe.analyze_diffusion_pipeline(pipeline)
    parts = {one.name: one for one in report.components}
    assert set(parts) == {"unet", "vae"}
    assert report["total_parameters"] == numel(pipeline.unet) + numel(pipeline.vae)
    assert parts["unet"].bytes == 4 * numel(pipeline.unet)
    assert parts["vae"].bytes == 2 * numel(pipeline.vae)
    assert (parts["vae"].dtypes, parts["vae"].devices) == (("float16",), ("cpu",))
    norm = (
        sum(float(parameter.detach().double().square().sum()) for parameter in pipeline.unet.parameters())
        ** 0.5
    )
    assert parts["unet"].norm == pytest.approx(norm, rel=1e-6)
    assert report.scheduler is not None
    assert report.scheduler.to_dict() == {
        "kind": "DDIMScheduler", "family": "variance_preserving", "train_timesteps": 1000,
        "prediction_type": "epsilon",
    }  # fmt: skip
    assert "image_processor" not in report.others
    assert report.problems == ()
    json.dumps(report)


@pytest.mark.capability(74)
def test_pipeline_of_a_transformer_and_a_flow_is_read_by_its_attributes() -> None:
    flow = tiny.scheduler("FlowMatchEulerDiscreteScheduler", 4)
    pipeline = SimpleNamespace(transformer=tiny.transformer(), vae=tiny.vae(), scheduler=flow, steps=4)
    report = probe.analyze_diffusion_pipeline(pipeline)
    assert {one.kind for one in report.components} == {"DiTTransformer2DModel", "AutoencoderKL"}
    assert report.scheduler is not None and report.scheduler.family == "flow"
    assert report.others == {}


def test_pipeline_problems_are_named() -> None:
    pipeline = tiny.latent_pipeline()
    with torch.no_grad():
        next(pipeline.unet.parameters()).view(-1)[:3] = torch.tensor([float("nan"), float("inf"), 0.0])
    pipeline.vae.train()
    report = probe.analyze_diffusion_pipeline(pipeline)
    assert "unet has parameters with 1 NaN and 1 Inf elements" in report.problems
    assert any(text.startswith("vae is in training mode") for text in report.problems)
    assert all(problem in str(report) for problem in report.problems)


def test_pipeline_counts_a_tied_model_once() -> None:
    shared = nn.Linear(4, 4)
    report = probe.analyze_diffusion_pipeline(SimpleNamespace(one=nn.Sequential(shared), two=shared))
    assert report.total_parameters == 20
    assert report.total_bytes == 80


def test_pipeline_on_the_meta_device_has_sizes_and_no_norm() -> None:
    report = probe.analyze_diffusion_pipeline(SimpleNamespace(unet=nn.Linear(3, 3, device="meta")))
    (part,) = report.components
    assert (part.parameters, part.bytes, part.norm) == (12, 0, None)


def test_object_without_models_is_refused() -> None:
    with pytest.raises(ValueError, match="SimpleNamespace has none"):
        probe.analyze_diffusion_pipeline(SimpleNamespace(scheduler=object()))


# -- the latents


def best_prediction(scheduler: Any, latents: Tensor, timestep: Tensor, data_std: float) -> Tensor:
    """What a perfect model predicts for normal data with `data_std`, in closed form: E[target | latents]."""
    if hasattr(scheduler, "sigmas") and hasattr(scheduler, "index_for_timestep"):
        index = scheduler.step_index
        sigma = float(scheduler.sigmas[scheduler.index_for_timestep(timestep) if index is None else index])
        if not hasattr(scheduler, "alphas_cumprod"):
            signal, noise = 1 - sigma, sigma
        elif float(scheduler.init_noise_sigma) > 1:
            signal, noise = 1.0, sigma
        else:
            signal, noise = (1 + sigma**2) ** -0.5, sigma * (1 + sigma**2) ** -0.5
    else:
        alpha = float(scheduler.alphas_cumprod[int(timestep)])
        signal, noise = alpha**0.5, (1 - alpha) ** 0.5
    variance = (signal * data_std) ** 2 + noise**2
    if not hasattr(scheduler, "alphas_cumprod"):
        return latents * (noise - signal * data_std**2) / variance
    return latents * noise / variance


def run_loop(scheduler: Any, *, data_std: float = 1.0, factor: float = 1.0, **options: Any) -> list[Any]:
    """Sample with the perfect model, its prediction times `factor`; returns what was seen."""
    pipeline = SimpleNamespace(scheduler=scheduler)
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(2, 4, 16, 16, generator=generator) * float(
        getattr(scheduler, "init_noise_sigma", 1.0)
    )
    seen = []
    for step, timestep in enumerate(scheduler.timesteps):
        if hasattr(scheduler, "scale_model_input"):
            scheduler.scale_model_input(latents, timestep)
        predicted = factor * best_prediction(scheduler, latents, timestep, data_std)
        random = (
            {"generator": generator}
            if "Ancestral" in type(scheduler).__name__ or "DDPM" in type(scheduler).__name__
            else {}
        )
        latents = scheduler.step(predicted, timestep, latents, **random).prev_sample
        seen.append(probe.monitor_diffusion_step(pipeline, step, latents, data_std=data_std, **options))
    return seen


@pytest.mark.capability(75)
@pytest.mark.parametrize("data_std", [1.0, 0.5])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_latents_of_a_perfect_model_have_the_scale_that_is_expected(name: str, data_std: float) -> None:
    options = {"clip_sample": False} if name in ("DDPMScheduler", "DDIMScheduler") else {}
    scheduler = tiny.scheduler(name, 40, **options)
    assert (
        probe.analyze_diffusion_pipeline(
            SimpleNamespace(unet=nn.Linear(1, 1), scheduler=scheduler)
        ).scheduler.family
        == SCHEDULERS[name]
    )  # type: ignore[union-attr]
    seen = run_loop(scheduler, data_std=data_std)
    assert [one.step for one in seen if not one.ok] == []
    assert max(abs(math.log(one.drift)) for one in seen) < math.log(1.15)


@pytest.mark.capability(75)
def test_model_of_another_prediction_drifts_and_is_found() -> None:
    """The scheduler takes the noise for a velocity."""
    wrong = tiny.scheduler("DDIMScheduler", 20, clip_sample=False, prediction_type="v_prediction")
    right = tiny.scheduler("DDIMScheduler", 20, clip_sample=False)
    assert all(one.ok for one in run_loop(right, drift_limit=1.5))
    found = [one for one in run_loop(wrong, drift_limit=1.5) if not one.ok]
    assert {finding.kind for one in found for finding in one.findings} == {"diffusion_drift"}


def test_statistics_are_those_of_the_latents() -> None:
    latents = torch.tensor([[1.0, -2.0], [4.0, 5.0]], dtype=torch.float64)
    seen = probe.monitor_diffusion_step(SimpleNamespace(), 3, latents)
    values = latents.flatten().tolist()
    assert seen["norm"] == pytest.approx(math.hypot(*values))
    assert (seen.mean, seen.min, seen.max) == (2.0, -2.0, 5.0)
    assert seen["std"] == pytest.approx(math.sqrt(sum((value - 2) ** 2 for value in values) / 4))
    assert (seen.expected_std, seen.drift, seen.timestep, seen.ok) == (None, None, None, True)


@pytest.mark.capability(75)
def test_pipeline_calls_it_as_its_callback_and_gives_the_same_image() -> None:
    pipeline = tiny.latent_pipeline()
    plain = tiny.sample(pipeline, 5).images
    watched = tiny.sample(pipeline, 5, callback_on_step_end=probe.monitor_diffusion_step).images
    assert torch.equal(plain, watched)
    steps = monitor.history
    assert [one.step for one in steps] == list(range(5))
    assert [one.timestep for one in steps] == pipeline.scheduler.timesteps.tolist()
    assert steps[-1].max == pytest.approx(float(watched.max()))


def test_callback_without_latents_says_how_to_get_them() -> None:
    with pytest.raises(ValueError, match="callback_on_step_end_tensor_inputs"):
        probe.monitor_diffusion_step(SimpleNamespace(), 0, torch.tensor(999), {})


@pytest.mark.parametrize(
    ("latents", "options"),
    [([1.0], {}), (torch.zeros(2), {"drift_limit": 1.0}), (torch.zeros(2), {"data_std": 0.0})],
)
def test_odd_arguments_are_refused(latents: Any, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        probe.monitor_diffusion_step(SimpleNamespace(), 0, latents, **options)
    assert monitor.counts.total_steps == 0


def test_counts_are_their_own_and_are_in_the_summary(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = SimpleNamespace(scheduler=tiny.scheduler("DDIMScheduler", 3))
    for latents in (torch.randn(4, 64), torch.full((4, 64), torch.nan), torch.randn(4, 64) * 50):
        for step in range(3):
            probe.monitor_diffusion_step(pipeline, step, latents)
    found = probe.get_debug_summary()["diffusion_debugger"]
    assert found == {
        "total_steps": 9, "samplings": 3, "total_anomalies": 6, "nonfinite_steps": 3, "drift_steps": 3,
        "debug_history_length": 9,
    }  # fmt: skip
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3 + [logging.WARNING] * 3
    probe.clear_debug_history()
    assert probe.get_debug_summary()["diffusion_debugger"]["total_steps"] == 0


def test_history_is_bounded() -> None:
    pipeline, latents = SimpleNamespace(), torch.zeros(2)
    for step in range(HISTORY + 7):
        probe.monitor_diffusion_step(pipeline, step, latents)
    assert len(monitor.history) == HISTORY
    assert monitor.counts.total_steps == HISTORY + 7


def test_calls_import_no_diffusers() -> None:
    code = (
        "import sys, torch, probe; from types import SimpleNamespace as S;"
        "p = S(unet=torch.nn.Linear(2, 2)); probe.analyze_diffusion_pipeline(p);"
        "probe.monitor_diffusion_step(p, 0, torch.zeros(2)); print('diffusers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout == "False\n"


# -- in a session


def documents(run_folder: Path) -> list[DenoisingBody]:
    (writer,) = run_folder.glob("0-*")
    newest: dict[str, Document] = {}
    for _, data in read_stream(writer, "events"):
        record = decode_record(data)
        if isinstance(record, Document) and record.kind == DENOISING_KIND:
            newest[record.key] = record
    return [read_body(found, DenoisingBody) for _, found in sorted(newest.items())]


@pytest.mark.capability(75)
def test_nan_of_a_real_model_is_an_event_with_its_step_once_a_sampling(spool: Path) -> None:
    pipeline = tiny.latent_pipeline()
    weight = next(pipeline.unet.parameters())
    optimizer = torch.optim.SGD(pipeline.unet.parameters(), lr=1e-4)
    run = probe.watch(pipeline.unet, optimizer, quiet=True)

    def spoil(pipe: Any, step: int, timestep: Any, given: dict[str, Any]) -> dict[str, Any]:
        run.monitor_diffusion_step(pipe, step, timestep, given, drift_limit=1e9)
        if step == 2:
            with torch.no_grad():
                weight.view(-1)[0] = torch.nan
        return given

    sample = torch.randn(2, 4, 8, 8)
    pipeline.unet(sample, 5, torch.ones(2, 3, 8)).sample.square().mean().backward()
    optimizer.step()
    for _ in range(2):
        tiny.sample(pipeline, 6, callback_on_step_end=spoil)
    run.close()
    (folder,) = spool.iterdir()
    journal = read_journal(folder)
    events = [event for event in journal.latest_events if event.kind == "diffusion_nonfinite"]
    assert [event.severity for event in events] == ["critical"] * 2
    assert [event.evidence.baseline["denoising_step"] for event in events] == [3.0, 0.0]  # type: ignore[index]
    assert "after denoising step 3 (timestep " in events[0].message
    assert events[0].advice
    first, second = documents(folder)
    assert [row.nan > 0 for row in first.steps] == [False] * 3 + [True] * 3
    assert first.found == [events[0].message.splitlines()[0]]
    assert (first.pipeline, first.scheduler) == ("StableDiffusionPipeline", "DDIMScheduler")
    assert len(second.steps) == 6
    series = {name for frame in journal.frames for name in frame.scalars}
    assert "log/diffusion/std" in series


def test_samplings_after_a_clearing_do_not_take_the_place_of_earlier_ones(spool: Path) -> None:
    pipeline = SimpleNamespace(scheduler=tiny.scheduler("DDIMScheduler", 1))
    model = nn.Linear(2, 1)
    with probe.watch(model, quiet=True) as run:
        for latents in (torch.full((4, 8), torch.inf), torch.full((4, 8), torch.nan)):
            probe.monitor_diffusion_step(pipeline, 0, latents)
            run.clear_debug_history(report=False)
    (folder,) = spool.iterdir()
    assert [(found.steps[0].inf, found.steps[0].nan) for found in documents(folder)] == [(32, 0), (0, 32)]
    kinds = [event.kind for event in read_journal(folder).latest_events]
    assert kinds.count("diffusion_nonfinite") == 2


def test_training_without_sampling_has_nothing_of_it(spool: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = probe.watch(model, optimizer, quiet=True)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    run.close()
    (folder,) = spool.iterdir()
    assert documents(folder) == []
    assert not any("diffusion" in name for frame in read_journal(folder).frames for name in frame.scalars)
