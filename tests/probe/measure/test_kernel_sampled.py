"""The kernel's passes of sampled steps at every vector width: magnitudes, kept gradients, moments."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from probe.measure.kernels import binding
from probe.measure.statistics.magnitudes import log2_histograms
from probe.measure.statistics.native_statistics import gathered
from probe.measure.statistics.tensor_pairs import KeptTensors, moment_norms
from probe.wire.magnitude_bins import BIN_EDGES, BINS, NAN_BIN

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def bins_of(tensor: Tensor) -> list[int]:
    """Count by a search in float64, one tensor at a time."""
    values = np.abs(tensor.double().reshape(-1).numpy())
    bins = np.where(np.isnan(values), NAN_BIN, np.searchsorted(BIN_EDGES, values, side="right"))
    return np.bincount(bins, minlength=BINS).tolist()


INTEGERS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def any_bits(dtype: torch.dtype, size: int, seed: int) -> Tensor:
    """Random bit patterns: every exponent, subnormals, Inf and NaN of many kinds among them."""
    info, generator = torch.iinfo(INTEGERS[dtype]), torch.Generator().manual_seed(seed)
    whole = torch.randint(info.min, info.max, (size,), generator=generator, dtype=INTEGERS[dtype])
    # Half of them with few bits, of which exponents alone are made.
    shift = torch.randint(0, info.bits, (size,), generator=generator, dtype=INTEGERS[dtype])
    return torch.where(torch.arange(size) % 2 == 0, whole, whole << shift).view(dtype)


def beside_edges(dtype: torch.dtype) -> Tensor:
    """Every edge, and the numbers next to it on either side, with both signs."""
    edges = torch.tensor(BIN_EDGES, dtype=torch.float64).to(dtype)
    bits = torch.cat([edges, -edges]).view(INTEGERS[dtype])
    return torch.cat([bits - 1, bits, bits + 1]).view(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_kernel_of_every_length_around_a_block_counts_magnitudes_exactly(
    width: str, dtype: torch.dtype
) -> None:
    sizes = [*range(1, 35), *range(505, 520), *range(1018, 1060), 1535, 1536, 1537, 2047, 2048, 2049, 5003]
    tensors = [any_bits(dtype, size, size) for size in sizes]
    counts = log2_histograms(list(tensors))
    assert counts.tolist() == [bins_of(tensor) for tensor in tensors]


@pytest.mark.parametrize("dtype", FLOATS)
def test_kernel_counts_magnitudes_beside_every_edge_exactly(width: str, dtype: torch.dtype) -> None:
    beside = beside_edges(dtype)
    # Each kind alone in a block of ordinary numbers, alone in one of zeros, and a block full of it.
    tensors = [beside, beside.repeat(17)]
    for value in beside.split(1):
        ordinary = torch.full((1030,), 0.3).to(dtype)
        zeros, full = torch.zeros(3000, dtype=dtype), value.repeat(1500)
        ordinary[517], zeros[1024], zeros[1025:1100] = value, value, -0.0
        tensors += [ordinary, zeros, full, torch.cat([zeros, full, ordinary])]
    assert log2_histograms(list(tensors)).tolist() == [bins_of(tensor) for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernel_counts_every_16_bit_pattern_exactly(width: str, dtype: torch.dtype) -> None:
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    assert log2_histograms([patterns])[0].tolist() == bins_of(patterns)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_kernel_counts_magnitudes_of_complex_parts(width: str, dtype: torch.dtype) -> None:
    real = torch.float32 if dtype is torch.complex64 else torch.float64
    parts = any_bits(real, 4200, 5)
    assert log2_histograms([parts.view(dtype)])[0].tolist() == bins_of(parts)


def test_kernel_counts_magnitudes_of_more_than_one_piece(width: str) -> None:
    tensor = any_bits(torch.float32, 3 * 2**20 + 700, 11)
    assert log2_histograms([tensor])[0].tolist() == bins_of(tensor)


def test_kernel_counts_into_bins_of_any_number_inside_an_octave(width: str, kernel: binding.Kernel) -> None:
    edges = np.sort(np.concatenate([np.linspace(1.0, 2.0, 40), [0.0, 3.0, 1e-42, 65520.0]])).astype(
        np.float32
    )
    tensor = torch.rand(5000, generator=torch.Generator().manual_seed(6)) * 4
    tensor[::7], tensor[3] = 0.0, 1e-41
    counts = np.zeros((1, len(edges) + 1), dtype=np.int64)
    limits = np.append(edges.view(np.uint32), np.uint32(0xFFFFFFFF))
    kernel.histograms(gathered(kernel, [tensor]), limits, counts)
    expected = np.bincount(np.searchsorted(edges, tensor.numpy(), side="right"), minlength=len(edges) + 1)
    assert counts[0].tolist() == expected.tolist()


def check_renewal(kept: KeptTensors, new: list[Tensor]) -> None:
    """Have the copies follow, and compare with sums of Python floats over what they were before."""
    old = [None if copy is None else copy.double().reshape(-1).tolist() for copy in kept.tensors]
    squares, products = kept.renew(new)
    for index, tensor in enumerate(new):
        values = tensor.double().reshape(-1).tolist()
        before = old[index] or [0.0] * len(values)
        assert squares[index] == pytest.approx(math.fsum(x * x for x in values), rel=1e-12)
        dot = math.fsum(x * y for x, y in zip(values, before, strict=True))
        size = math.fsum(abs(x * y) for x, y in zip(values, before, strict=True))
        assert products[index] == pytest.approx(dot, abs=1e-12 * size)
        copy, integers = kept.tensors[index], INTEGERS[tensor.dtype]
        assert copy is not None and torch.equal(copy.view(integers), tensor.view(integers))


@pytest.mark.parametrize("dtype", FLOATS)
def test_kept_tensors_of_every_length_match_reference_and_hold_the_new(
    width: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(8)
    sizes = [*range(1, 40), 127, 128, 129, 511, 512, 513, 1023, 1025, 5000]
    kept = KeptTensors(len(sizes))
    for _ in range(3):
        check_renewal(kept, [torch.randn(size, generator=generator).to(dtype) for size in sizes])


@pytest.mark.parametrize("dtype", FLOATS)
def test_kept_tensors_with_parts_of_zeros_match_reference(width: str, dtype: torch.dtype) -> None:
    rows, kept = 70, KeptTensors(1)
    at = torch.arange(rows)
    patterns = [at % 3 == 0, at % 3 == 0, at < 0, at % 2 == 0, at >= 0, at % 5 == 1, at < 0, at < 0, at == 69]
    for step, used in enumerate(patterns):
        gradient = torch.zeros(rows, 512, dtype=dtype)
        gradient[used] = torch.randn(512, generator=torch.Generator().manual_seed(step)).to(dtype)
        gradient[at == step, step] = -0.0
        # Elsewhere in memory, the copy is made by torch.
        new = gradient.t().contiguous().t() if step == 4 else gradient
        check_renewal(kept, [new])


@pytest.mark.parametrize("dtype", FLOATS)
def test_kept_zeros_do_not_hide_what_is_not_finite(width: str, dtype: torch.dtype) -> None:
    zeros, wrong = torch.zeros(70 * 512, dtype=dtype), torch.zeros(70 * 512, dtype=dtype)
    wrong[9000] = math.inf
    kept = KeptTensors(1)
    found = [[float(part[0]) for part in kept.renew([new])] for new in (zeros, zeros, wrong, zeros, zeros)]
    infinite_by_zero = [0.0, math.nan]
    expected = [[0.0, 0.0], [0.0, 0.0], [math.inf, math.nan], infinite_by_zero, [0.0, 0.0]]
    np.testing.assert_array_equal(found, expected)


def test_kept_tensors_of_complex_count_parts(width: str) -> None:
    generator, kept = torch.Generator().manual_seed(10), KeptTensors(1)
    parts = torch.randn(2, 2 * 35_000, generator=generator)
    for part in parts:
        squares, products = kept.renew([part.view(torch.complex64)])
    assert squares[0] == pytest.approx(math.fsum(x * x for x in parts[1].tolist()), rel=1e-12)
    dot = math.fsum(x * y for x, y in zip(*parts.tolist(), strict=True))
    assert products[0] == pytest.approx(dot, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernel_of_moments_matches_reference(width: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(9)
    sizes = [*range(1, 40), 255, 256, 257, 511, 512, 513, 1025, 5000]
    first = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
    second = [torch.rand(size, generator=generator).to(dtype) for size in sizes]
    # Rows that were never used, and one that came to nothing but for its square.
    first[-1][600:3000], second[-1][600:3000], first[-1][4000:4600] = 0.0, 0.0, 0.0
    eps = np.linspace(1e-3, 1.0, len(sizes))
    norms, done = moment_norms(list(first), list(second), eps)
    assert done.all()
    for index, (m, v) in enumerate(zip(first, second, strict=True)):
        pairs = list(zip(m.double().tolist(), v.double().tolist(), strict=True))
        quotients = [x / (math.sqrt(y) + eps[index]) for x, y in pairs]
        expected = [math.hypot(*(x for x, _ in pairs)), math.hypot(*(y for _, y in pairs))]
        assert norms[:2, index].tolist() == pytest.approx(expected, rel=1e-12)
        assert norms[2, index] == pytest.approx(math.hypot(*quotients), rel=3e-7)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [0, 515, 1999])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_kernel_of_pairs_finds_one_bad_element(width: str, dtype: torch.dtype, at: int, bad: float) -> None:
    good, wrong = torch.ones(2000, dtype=dtype), torch.zeros(2000, dtype=dtype)
    wrong[at] = bad
    kept = KeptTensors(2)
    kept.renew([good, wrong])
    squares, products = kept.renew([wrong, good])
    np.testing.assert_array_equal([squares[0], *products], [bad] * 3)
    if dtype is not torch.float64:
        norms, _ = moment_norms([wrong, torch.zeros_like(good)], [good, wrong.clone()], np.full(2, 1e-8))
        np.testing.assert_array_equal(norms[[0, 2], 0], [bad, bad])
        assert norms[1, 1] == bad or math.isnan(norms[1, 1])


def test_kernel_of_moments_without_eps_says_what_zero_by_zero_is(width: str) -> None:
    zeros = torch.zeros(2048)
    norms, _ = moment_norms([zeros], [zeros.clone()], np.zeros(1))
    np.testing.assert_array_equal(norms[:, 0], [0.0, 0.0, math.nan])
