"""The pass over tensors of a CUDA device: how they are cut, and on a GPU what it finds."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cuda_waits import cuda_waits_are_errors
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probe.compat.nvrtc import CudaCallError
from probe.measure.kernels import device_pass
from probe.measure.kernels.device_pass import VALUES, DevicePass, cut, measure_in_one_pass

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
BOUNDS = (-0.5, 1.0)
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"
)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.sampled_from(DTYPES)), min_size=1, max_size=40))
def test_each_element_belongs_to_one_block(tensors: list[tuple[int, torch.dtype]]) -> None:
    sizes, dtypes = [size for size, _ in tensors], [dtype for _, dtype in tensors]
    order, first, per_block = cut(sizes, dtypes)
    assert sorted(order) == list(range(len(sizes)))
    for place, blocks in zip(order, np.diff(first).tolist(), strict=True):
        assert (blocks - 1) * per_block < sizes[place] <= blocks * per_block
    assert first[-1] <= 8192 + len(sizes)


@given(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=1500))
def test_each_launch_takes_tensors_of_one_dtype(dtypes: list[torch.dtype]) -> None:
    ordered = [dtypes[place] for place in cut([1] * len(dtypes), dtypes).order]
    runs = device_pass._runs(ordered)
    assert [*itertools.chain.from_iterable(range(*run) for run in runs)] == list(range(len(dtypes)))
    assert all(len(set(ordered[begin:end])) == 1 and end - begin <= 440 for begin, end in runs)


def test_constants_are_those_of_the_source() -> None:
    source = device_pass._SOURCE.read_text()
    for name in ("TENSORS", "THREADS"):
        assert f"#define {name} {getattr(device_pass, '_' + name)}\n" in source
    assert f"#define VALUES {VALUES}\n" in source


def test_tensors_of_the_host_are_left_to_torch() -> None:
    assert measure_in_one_pass([torch.ones(30_000)]) is None
    assert not any(device.type == "cpu" for device in device_pass._of_devices)


def raising(error: Exception) -> Callable[..., Any]:
    def raises(*given: Any) -> Any:
        raise error

    return raises


@pytest.mark.parametrize(
    "error", [RuntimeError("CUDA out of memory"), AttributeError("cuLaunchKernel"), CudaCallError("801")]
)
def test_pass_that_cannot_be_loaded_leaves_it_to_torch(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What the driver says, or the allocator, is no failure of the step."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(device_pass, "compile_cuda", lambda *given: b"compiled")
    monkeypatch.setattr(device_pass, "DevicePass", raising(error))
    making = device_pass._Making(torch.device("cuda", 0))
    making._thread.join(60)
    assert making.get() is None
    assert making._has_failed


def test_process_that_has_no_thread_left_measures_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
    making = device_pass._Making(torch.device("cuda", 0))
    assert making.get() is None
    assert making._has_failed


@pytest.fixture
def one_pass() -> DevicePass:
    device = torch.device("cuda", torch.cuda.current_device())
    measure_in_one_pass([torch.ones(3, device=device)])
    making = device_pass._of_devices[device]
    making._thread.join(60)
    made = making.get()
    assert made is not None, "the pass is not there"
    return made


def by_numpy(tensor: Tensor) -> list[float]:
    values = tensor.detach().double().cpu().numpy().reshape(-1)
    with np.errstate(all="ignore"):
        norm = float(np.sqrt(np.square(values).sum()))
        low, high = BOUNDS
        beyond = (values <= low) | (values >= high)
        counts = [float(which.sum()) for which in (np.isnan(values), np.isinf(values), values == 0, beyond)]
        return [norm, float(np.abs(values).max()), float(values.sum()), *counts]


def odd_tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    sizes = [1, 2, 31, 255, 257, 16_384, 16_385, 1_000_003]
    made = [
        torch.randn(size, generator=generator).to(dtype).cuda()
        for size, dtype in itertools.product(sizes, DTYPES)
    ]
    made += [made[-1][1:], made[-2][3:70_000], torch.zeros(9, device="cuda")]
    made.append(torch.randn(8, 16, 9, 9, generator=generator).cuda().to(memory_format=torch.channels_last))
    made += [torch.full((70,), value, device="cuda") for value in (1e-30, 3e38, -3e38)]
    made += [torch.full((20_000,), math.nan, device="cuda"), torch.full((20_000,), -math.inf, device="cuda")]
    planted = torch.randn(100_000, generator=generator).cuda()
    planted[99_999], planted[5], planted[6] = math.inf, -math.inf, math.nan
    return [*made, planted]


@pytest.mark.gpu
@needs_gpu
def test_device_pass_finds_what_numpy_finds(one_pass: DevicePass) -> None:
    tensors = odd_tensors()
    found = one_pass.measure(tensors, BOUNDS)
    assert found is not None
    for tensor, column in zip(tensors, found.cpu().numpy().T.tolist(), strict=True):
        size = float(tensor.double().abs().sum())
        scale = size if math.isfinite(size) else 0.0
        assert column == pytest.approx(by_numpy(tensor), rel=1e-9, abs=1e-12 * scale, nan_ok=True)


@pytest.mark.gpu
@needs_gpu
def test_device_pass_gives_the_same_bits_and_waits_for_nothing(one_pass: DevicePass) -> None:
    tensors = [torch.randn(50_000, device="cuda") for _ in range(1000)]
    first = one_pass.measure(tensors)
    torch.cuda.synchronize()
    with cuda_waits_are_errors():
        again = one_pass.measure(tensors)
    assert first is not None and again is not None
    assert first.cpu().numpy().tobytes() == again.cpu().numpy().tobytes()
    assert first[0].cpu().numpy() == pytest.approx([float(t.double().norm()) for t in tensors], rel=1e-12)


@pytest.mark.gpu
@needs_gpu
def test_device_pass_is_of_the_moment_and_of_the_stream(one_pass: DevicePass) -> None:
    tensor = torch.full((5_000_000,), 2.0, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        found = one_pass.measure([tensor])
        tensor.zero_()
    torch.cuda.synchronize()
    assert found is not None
    assert found[2].item() == 1e7


@pytest.mark.gpu
@needs_gpu
def test_what_does_not_lie_in_one_piece_is_left_to_torch(one_pass: DevicePass) -> None:
    whole = torch.ones(40, 40, device="cuda")
    negated = torch._neg_view(torch.ones(9, device="cuda"))
    for other in (whole[:, :3], whole.int(), whole[:0], negated):
        assert one_pass.measure([whole, other]) is None


@pytest.mark.gpu
@needs_gpu
def test_source_that_does_not_compile_leaves_it_to_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.cu"
    broken.write_text('extern "C" __global__ void join() { no }')
    monkeypatch.setattr(device_pass, "_SOURCE", broken)
    monkeypatch.setattr(device_pass, "_of_devices", {})
    tensors = [torch.ones(3, device="cuda")]
    assert measure_in_one_pass(tensors) is None
    (making,) = device_pass._of_devices.values()
    making._thread.join(60)
    assert making._has_failed
    assert measure_in_one_pass(tensors) is None
