"""The compiled kernel at every vector width, and what happens where there is none."""

import math
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from probe.measure.kernels import binding, compile, tensor_reader
from probe.measure.statistics.magnitudes import log2_histograms
from probe.measure.statistics.native_statistics import gathered
from probe.measure.statistics.statistics import tensor_statistics
from probe.measure.statistics.tensor_measures import activation_statistics, difference_norms, dot_products
from probe.measure.statistics.tensor_pairs import KeptTensors, moment_norms

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def needs_compiler() -> None:
    if compile.find_compiler() is None:
        pytest.skip("no C compiler: apt-get install gcc libc6-dev")


def exact(tensor: Tensor) -> list[float]:
    """norm, max_abs, mean, std by correctly rounded sums of Python floats."""
    values = tensor.double().reshape(-1).tolist()
    mean = math.fsum(values) / len(values)
    spread = math.hypot(*(value - mean for value in values)) / math.sqrt(len(values))
    return [math.hypot(*values), max(map(abs, values)), mean, spread]


@pytest.mark.parametrize("dtype", FLOATS)
def test_kernel_of_every_length_around_a_vector_matches_reference(width: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = [*range(1, 70), 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025, 9973]
    tensors = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    measured = tensor_statistics(list(tensors))
    for index, tensor in enumerate(tensors):
        scale = exact(tensor)[1]
        np.testing.assert_allclose(
            measured.block[:4, index], exact(tensor), rtol=2e-6, atol=2e-7 * scale, err_msg=str(len(tensor))
        )
    assert measured.is_finite and not measured.missing.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernel_reads_every_16_bit_pattern_as_torch_does(width: str, dtype: torch.dtype) -> None:
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    finite = patterns[patterns.isfinite()]
    measured = tensor_statistics([patterns, finite, *patterns.split(1)])
    ones = measured.block[:, 2:]
    values = patterns.double().numpy()
    np.testing.assert_array_equal(ones[0], np.abs(values))
    np.testing.assert_array_equal(ones[2], values)
    assert measured.nan_count[0] == np.isnan(values).sum()
    assert measured.inf_count[0] == 2
    assert measured.norm[1] == pytest.approx(exact(finite)[0], rel=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [0, 16, 515, 700])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_kernel_finds_one_bad_element_anywhere(width: str, dtype: torch.dtype, at: int, bad: float) -> None:
    tensor = torch.ones(701, dtype=dtype)
    tensor[at] = bad
    measured = tensor_statistics([torch.ones(3), tensor])
    assert not measured.is_finite
    counts = (measured.nan_count.tolist(), measured.inf_count.tolist())
    assert counts == (([0, 1], [0, 0]) if math.isnan(bad) else ([0, 0], [0, 1]))
    expected = [abs(bad), abs(bad), bad, math.nan]
    np.testing.assert_array_equal(measured.block[:4, 1], expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [7, 16_385, 140_001])
def test_kernel_counts_many_bad_elements_in_every_piece(width: str, dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    for bad in ([math.inf], [-math.inf], [math.inf, -math.inf], [-math.inf, math.nan]):
        tensor = torch.randn(size, generator=generator).to(dtype)
        for at, value in enumerate(bad):
            tensor[at :: len(bad) + 1] = value
        measured = tensor_statistics([tensor])
        assert measured.nan_count[0] == tensor.isnan().sum()
        assert measured.inf_count[0] == tensor.isinf().sum()
        np.testing.assert_array_equal(measured.block[2, 0], tensor.double().mean())


@pytest.mark.parametrize("power", [-320, -300, -160, -150, 150, 160, 300, 307])
def test_kernel_of_float64_at_the_ends_of_its_range_is_exact(width: str, power: int) -> None:
    tensor = torch.tensor([3.0, -4.0, 0.0, 1.0], dtype=torch.float64) * 10.0**power
    # A subnormal has few bits of its own.
    precision = 1e-12 if power > -310 else 5e-3
    measured = tensor_statistics([tensor]).block[:4, 0]
    assert measured.tolist() == pytest.approx(exact(tensor), rel=precision, abs=0.0)


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=40),
)
def test_kernel_of_any_float64_matches_reference(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    largest = max(map(abs, values))
    measured = tensor_statistics([tensor])
    assert measured.max_abs[0] == largest
    scaled = [value / largest for value in values] if largest > 1e-290 else values
    factor = largest if largest > 1e-290 else 1.0
    with np.errstate(over="ignore"):
        expected = np.float64(math.hypot(*scaled)) * factor
    assert measured.norm[0] == pytest.approx(expected, rel=1e-9, abs=5e-324)
    assert measured.mean[0] == pytest.approx(math.fsum(scaled) / len(values) * factor, abs=1e-12 * largest)


@pytest.mark.parametrize("dtype", FLOATS)
def test_kernel_counts_zeros_and_saturated_elements(width: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    tensors = [(torch.randint(-4, 5, (n,), generator=generator) / 4).to(dtype) for n in (1, 31, 33, 700)]
    tensors.append(torch.full((40,), 1e-40, dtype=torch.float32).to(dtype))
    for low, high in [(-0.75, 0.75), (0.25, 2.0), (-math.inf, 0.0)]:
        measured = activation_statistics(tensors, saturation=[(low, high)] * len(tensors))
        values = [tensor.double().numpy() for tensor in tensors]
        assert measured.zero_fraction.tolist() == [float((v == 0).mean()) for v in values]
        expected = [float(((v <= low) | (v >= high)).mean()) for v in values]
        assert measured.saturated_fraction.tolist() == expected


@pytest.mark.parametrize("dtype", FLOATS)
def test_kernel_of_pairs_matches_reference(width: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    new = [torch.randn(size, generator=generator).to(dtype) for size in (1, 15, 64, 129, 5000)]
    old = [(tensor * 0.9).to(dtype) for tensor in new]
    pairs = [(a.double().tolist(), b.double().tolist()) for a, b in zip(new, old, strict=True)]
    norms = [math.hypot(*(x - y for x, y in zip(a, b, strict=True))) for a, b in pairs]
    dots = [math.fsum(x * y for x, y in zip(a, b, strict=True)) for a, b in pairs]
    assert difference_norms(new, old).tolist() == pytest.approx(norms, rel=1e-12, abs=0.0)
    assert dot_products(new, old).tolist() == pytest.approx(dots, rel=1e-12, abs=0.0)


def test_kernel_keeps_the_callers_arithmetic_mode(kernel: binding.Kernel) -> None:
    torch.set_flush_denormal(True)
    try:
        tensor_statistics([torch.full((50,), 1e-41)])
        difference_norms([torch.ones(3)], [torch.zeros(3)])
        KeptTensors(1).renew([torch.ones(3)])
        moment_norms([torch.ones(3)], [torch.ones(3)], np.ones(1))
        log2_histograms([torch.ones(3000)])
        assert not bool((torch.tensor(1e-38) * torch.tensor(1e-3)).item())
    finally:
        torch.set_flush_denormal(False)
    tensor_statistics([torch.full((50,), 1e-41)])
    assert bool((torch.tensor(1e-38) * torch.tensor(1e-3)).item())


SPECIAL = {
    "expanded": torch.ones(1).expand(9),
    "partly expanded": torch.ones(3, 1).expand(3, 4),
    "strided": torch.ones(10)[::2],
    "overlapping": torch.ones(10).as_strided((4, 3), (2, 1)),
    "sparse": torch.eye(3).to_sparse(),
    "meta": torch.empty(3, device="meta"),
    "integers": torch.ones(3, dtype=torch.int32),
    "fp8": torch.ones(4).to(torch.float8_e4m3fn),
    "negated": torch._neg_view(torch.ones(3)),
    "conjugated": torch.ones(3, dtype=torch.complex64).conj(),
    "subclass": torch.ones(3).as_subclass(type("Tagged", (Tensor,), {})),
}
PLAIN = {
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "transposed": torch.ones(3, 4).t(),
    "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last 3d": torch.ones(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    "one of each": torch.ones(1, 1, 1).expand(1, 1, 1),
    "scalar": torch.tensor(1.0),
    "complex": torch.ones(3, dtype=torch.complex128),
    "view": torch.ones(5, 5)[1:3],
    "needs gradient": torch.ones(3, requires_grad=True) * 2,
}


@pytest.mark.parametrize("name", SPECIAL)
def test_gather_never_reads_by_pointer_what_does_not_lie_so_in_memory(
    kernel: binding.Kernel, name: str
) -> None:
    batch = gathered(kernel, [torch.ones(2), SPECIAL[name], torch.ones(3)])
    assert batch.special.tolist() == [1]


@pytest.mark.parametrize("name", PLAIN)
def test_gather_takes_every_dense_tensor(kernel: binding.Kernel, name: str) -> None:
    batch = gathered(kernel, [PLAIN[name]])
    assert not batch.special.size
    assert int(batch.pointers[0]) == PLAIN[name].data_ptr()
    assert int(batch.sizes[0]) == PLAIN[name].numel() * (2 if PLAIN[name].is_complex() else 1)


def test_gather_of_none_and_empty_is_missing(kernel: binding.Kernel) -> None:
    batch = gathered(kernel, [None, torch.empty(0), torch.empty(3, 0), torch.ones(1)])
    assert (batch.kinds == binding.MISSING).tolist() == [True, True, True, False]


def test_gathered_tensors_take_room_for_results_once_they_are_measured(kernel: binding.Kernel) -> None:
    """Of 2,000 it is 0.1 MiB, which most batches have no use for."""
    tensor = torch.tensor([0.0, 3.0, -4.0])
    batch = gathered(kernel, [tensor])
    assert batch.job.block is None and batch.job.fractions is None
    kernel.measure(batch)
    assert batch.job.fractions is None
    assert batch.block[:2, 0].tolist() == [5.0, 4.0]
    batch.count_within(np.array([[-3.5], [3.5]]))
    kernel.measure(batch)
    assert batch.fractions[:, 0].tolist() == [pytest.approx(1 / 3)] * 2


def test_gather_of_a_list_of_another_length_is_refused(kernel: binding.Kernel) -> None:
    with pytest.raises(ValueError, match="2 tensors for a batch of 3"):
        kernel.gather(binding.Batch(3), [torch.ones(1)] * 2)


def test_measuring_from_several_threads_with_one_plan_is_right(kernel: binding.Kernel) -> None:
    from probe.measure.statistics.statistics import plan_measurement

    tensors = [torch.full((60_000,), float(k)) for k in range(1, 9)]
    plan, wrong = plan_measurement(tensors), []

    def measure(factor: int) -> None:
        scaled = [tensor * factor for tensor in tensors]
        for _ in range(30):
            got = tensor_statistics(scaled, plan).max_abs
            if got.tolist() != [float(k * factor) for k in range(1, 9)]:
                wrong.append(got)

    threads = [threading.Thread(target=measure, args=(factor,)) for factor in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_status_says_which_way_runs_and_why(kernel: binding.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert binding.status().reason.startswith("native kernel, ")
    monkeypatch.undo()
    monkeypatch.setenv("NANSCOPE_KERNEL", "off")
    assert binding.status().kernel is None
    assert "NANSCOPE_KERNEL" in binding.status().reason


def test_load_without_a_library_says_so(tmp_path: Path) -> None:
    assert binding.load(tmp_path / "none.so") == binding.KernelStatus(None, binding.NOT_BUILT)


def test_load_of_a_broken_library_falls_back(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    status = binding.load(broken)
    assert status.kernel is None
    assert "does not load" in status.reason


def test_load_of_a_library_from_other_sources_falls_back(tmp_path: Path) -> None:
    needs_compiler()
    folder = tmp_path / "sources"
    shutil.copytree(compile.FOLDER, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    source = folder / "kernel.c"
    # A change by which the compiler takes a second instead of six.
    source.write_text('#pragma GCC optimize ("O0")\n' + source.read_text())
    subprocess.run([sys.executable, str(folder / "compile.py")], check=True, timeout=120)
    status = binding.load(folder / compile.LIBRARY_NAME)
    assert status.kernel is None
    assert "another version" in status.reason


def test_load_on_a_torch_without_the_c_interface_falls_back(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_reader, "find", lambda: None)
    status = binding.load(Path(shutil.copy(library, tmp_path)))
    assert status.kernel is None
    assert "torch" in status.reason


@pytest.mark.parametrize("command", ["/nonexistent/cc", sys.executable])
def test_compile_without_a_working_compiler_gives_a_reason_and_no_file(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", command)
    assert compile.compile_kernel(tmp_path / compile.LIBRARY_NAME)
    assert not list(tmp_path.iterdir())
