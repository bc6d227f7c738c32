"""The analysis calls on a CUDA device: the same numbers as on the CPU, and no wait where none is promised."""

import asyncio
import math

import pytest
import torch
from cuda_waits import cuda_waits_are_errors
from planted_models import backward, chain

from probe import analyze_tensor, check_gradients, debug_forward_pass, inspect_model, snapshot_parameters
from probe.actions import aio
from probe.actions.analysis.watched_tensors import deferred_statistics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


@pytest.mark.filterwarnings("ignore:Specified kernel cache directory")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_cuda_tensor_has_the_statistics_of_its_copy(dtype: torch.dtype) -> None:
    tensor = torch.randn(300, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    here, there = analyze_tensor(tensor), analyze_tensor(tensor.cuda())
    for name in ("norm", "mean", "std", "min", "max", "zero_fraction", "nan_count"):
        assert getattr(there, name) == pytest.approx(getattr(here, name), rel=1e-4, abs=1e-6), name
    assert there.device == "cuda:0"


def test_cuda_watched_tensor_waits_for_nothing() -> None:
    tensor = torch.randn(5000, generator=torch.Generator().manual_seed(1))
    tensor[7] = math.inf
    on_device = tensor.cuda()
    with cuda_waits_are_errors():
        reads = deferred_statistics("t", on_device)
        on_device.zero_()
    expected = {name: read() for name, read in deferred_statistics("t", tensor).items()}
    assert {name: read() for name, read in reads.items()} == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_cuda_model_is_checked_and_inspected() -> None:
    torch.manual_seed(0)
    model = chain(6, 8, 2)
    backward(model, torch.ones(4, 6))
    expected = check_gradients(model).total_norm
    model.zero_grad()
    model.cuda()
    backward(model, torch.ones(4, 6, device="cuda"))
    assert check_gradients(model).total_norm == pytest.approx(expected, rel=1e-4)
    state = torch.cuda.get_rng_state()
    report = inspect_model(model, torch.ones(4, 6, device="cuda"))
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert report.modules[0].output_shapes == ((4, 2),)
    assert debug_forward_pass(model, torch.ones(4, 6, device="cuda")).ok
    assert snapshot_parameters(model).nbytes == sum(p.nbytes for p in model.parameters())


def test_cuda_call_from_a_coroutine_keeps_the_stream() -> None:
    model = chain(6, 8, 2).cuda()
    seen: list[torch.cuda.Stream] = []
    handle = model.register_forward_hook(lambda *_: seen.append(torch.cuda.current_stream()))
    stream = torch.cuda.Stream()

    async def main() -> None:
        with torch.cuda.stream(stream):
            await aio.debug_forward_pass(model, torch.ones(4, 6, device="cuda"))

    asyncio.run(main())
    handle.remove()
    assert seen == [stream]
