"""Tensors go into a bundle's file and come back as what they were; a file that was changed is refused."""

import os
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from probe.errors import BundleError
from probe.forensics.bundle.packer import CopiedTensors, Copies, TensorPacker
from probe.forensics.bundle.schema import Contents, Model, StridedTensor
from probe.forensics.bundle.unpacker import TensorReader

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool),
    *(torch.complex64, torch.complex128),
]
MODEL = Model(type="", naming_root="", parameters=[], ties={}, buffers=[], attributes=[])


def copied(packer: TensorPacker) -> CopiedTensors:
    found = packer.copy(Copies())
    assert found is not None
    return found


def written(path: Path, packer: TensorPacker) -> Contents:
    done = copied(packer).write(path)
    return Contents(
        model=MODEL,
        calls=[],
        gradients=None,
        loss=None,
        stage="local",
        tensors=done.records,
        blobs=done.blobs,
        tensors_bytes=done.size,
        tensors_crc32=done.crc32,
    )


def again(path: Path, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Write tensors, and read them back."""
    packer = TensorPacker()
    places = [packer.add(tensor, f"t{number}") for number, tensor in enumerate(tensors)]
    reader = TensorReader(path, written(path, packer))
    return [reader.get(place) for place in places]


def raw(tensor: torch.Tensor) -> bytes:
    """The elements' bytes, one by one."""
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path, dtype):
    bits = torch.arange(96, dtype=torch.uint8).mul_(37)
    tensor = bits % 2 == 1 if dtype is torch.bool else bits.view(dtype)
    (back,) = again(tmp_path / "t", tensor.reshape(2, -1))
    assert (back.dtype, back.shape) == (dtype, (2, tensor.numel() // 2))
    assert raw(back) == raw(tensor)


def test_nan_payloads_negative_zero_and_infinities_keep_their_bits(tmp_path):
    tensor = torch.tensor([0x7FC00001, 0x7F800001, -0x80000000, 0x7F800000], dtype=torch.int32)
    (back,) = again(tmp_path / "t", tensor.view(torch.float32))
    assert torch.equal(back.view(torch.int32), tensor)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[:, 1],
        lambda x: x[1:, ::2],
        lambda x: x[:1].expand(5, 6),
        lambda x: x.reshape(2, 2, 6).unfold(2, 3, 1),
        lambda x: x.reshape(1, 2, 2, 6).to(memory_format=torch.channels_last),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: torch.empty_strided((0, 3), (7, 2)),
        lambda x: torch.complex(x, -x).conj(),
    ],
)
def test_views_come_back_with_their_strides(tmp_path, view):
    tensor = view(torch.arange(24.0).reshape(4, 6))
    (back,) = again(tmp_path / "t", tensor)
    assert (back.shape, back.stride()) == (tensor.shape, tensor.stride())
    assert back.tolist() == tensor.tolist()


def test_values_that_torch_negates_lazily_come_back_negated(tmp_path):
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert tensor.is_neg()
    (back,) = again(tmp_path / "t", tensor)
    assert back.tolist() == [-2, 4]


def test_memory_begins_where_it_did(tmp_path):
    tensor = torch.zeros(40)[3:]
    (back,) = again(tmp_path / "t", tensor)
    assert back.data_ptr() % 64 == tensor.data_ptr() % 64 != 0


def test_what_shares_memory_shares_it_again_and_is_written_once(tmp_path):
    whole = torch.arange(1000.0)
    back = again(tmp_path / "t", whole, whole[10:20], whole.reshape(10, 100).t(), whole.detach())
    back[0][10] = -1
    assert back[1][0] == back[2][10, 0] == back[3][10] == -1
    assert back[0] is back[3]
    assert (tmp_path / "t").stat().st_size < 5000


def test_a_row_of_a_large_storage_is_written_without_the_rest(tmp_path):
    rows = torch.arange(200_000.0).reshape(200, 1000)
    back = again(tmp_path / "t", rows[7], rows[:, 0])
    assert [tensor.tolist() for tensor in back] == [rows[7].tolist(), rows[:, 0].tolist()]
    assert [tensor.stride() for tensor in back] == [(1,), (1000,)]
    assert (tmp_path / "t").stat().st_size < 10_000


def test_sparse_tensor_comes_back_with_its_order(tmp_path):
    places, values = torch.tensor([[2, 0, 2]]), torch.randn(3, 4)
    sparse = torch.sparse_coo_tensor(places, values, (5, 4), check_invariants=True)
    back, coalesced = again(tmp_path / "t", sparse, sparse.coalesce())
    assert (back.is_coalesced(), coalesced.is_coalesced()) == (False, True)
    assert back._indices().tolist() == [[2, 0, 2]]
    assert torch.equal(back.to_dense(), sparse.to_dense())


class Special(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: torch.zeros(2, 2).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.zeros(2, device="meta"), "meta"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), "quantised"),
        (lambda: torch.zeros(2).as_subclass(Special), "Special"),
    ],
    ids=["csr", "meta", "quantised", "subclass"],
)
@pytest.mark.filterwarnings("ignore")
def test_other_kinds_of_tensors_are_declined_by_name(make, named):
    with pytest.raises(BundleError, match=named):
        TensorPacker().add(make(), "t")


def test_file_is_ordinary_safetensors_with_the_tensors_names_and_shapes(tmp_path):
    weight, step = torch.randn(3, 4), torch.tensor(7)
    packer = TensorPacker()
    packer.add(weight, "parameters/weight")
    packer.add(step, "buffers/step")
    copied(packer).write(tmp_path / "t")
    found = load_file(tmp_path / "t")
    assert set(found) == {"parameters/weight", "buffers/step"}
    assert torch.equal(found["parameters/weight"], weight)
    assert torch.equal(found["buffers/step"], step)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600


# ---------------------------------------------------------------------------- files that were changed


@pytest.fixture
def file(tmp_path):
    packer = TensorPacker()
    packer.add(torch.arange(100.0), "a")
    return tmp_path / "t", written(tmp_path / "t", packer)


def cut(path):
    os.truncate(path, path.stat().st_size - 10)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def replace_by_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (cut, "bytes"),
        (flip, "checksum"),
        (replace_by_link, "not a regular file"),
        (Path.unlink, "No such file"),
    ],
)
def test_changed_file_is_refused(file, change, named):
    path, contents = file
    change(path)
    with pytest.raises(BundleError, match=named):
        TensorReader(path, contents)


@pytest.mark.parametrize(
    "lie",
    [
        {"offset": 1},
        {"shape": [101], "stride": [1]},
        {"shape": [2, 2], "stride": [99, 1]},
        {"shape": [4], "stride": [2**61]},
        {"shape": [100, 100], "stride": [1]},
        {"blob": "b"},
        {"dtype": "float64"},
        {"dtype": "nn"},
        {"device": "../etc"},
        {"is_spread": True, "shape": [10, 10], "stride": [2**40, 1]},
        {"is_spread": True, "shape": [99], "stride": [1]},
    ],
    ids=str,
)
def test_description_that_lies_about_a_tensor_is_refused(file, lie):
    path, contents = file
    (record,) = contents.tensors
    assert isinstance(record, StridedTensor)
    changed = msgspec.structs.replace(contents, tensors=[msgspec.structs.replace(record, **lie)])
    with pytest.raises(BundleError):
        TensorReader(path, changed).get(0)


@pytest.mark.parametrize("lie", [{"elements": 99}, {"elements": 2**40}, {"dtype": "int16"}, {"alignment": 3}])
def test_description_that_lies_about_memory_is_refused(file, lie):
    path, contents = file
    blobs = {name: msgspec.structs.replace(blob, **lie) for name, blob in contents.blobs.items()}
    with pytest.raises(BundleError):
        TensorReader(path, msgspec.structs.replace(contents, blobs=blobs)).get(0)


def test_tensor_that_is_not_there_is_refused(file):
    path, contents = file
    with pytest.raises(BundleError, match="names tensor 1 of 1"):
        TensorReader(path, contents).get(1)
