"""Arguments become JSON and come back; what has no JSON is declined with its path."""

import enum
import json
import math
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from probe.errors import BundleError
from probe.forensics.bundle.packer import TensorPacker
from probe.forensics.bundle.values import Decoder, Encoder

Pair = namedtuple("Pair", "first second")


def through_json(value):
    """Encode, write, read and decode; tensors are kept aside."""
    tensors = []

    def keep(tensor, path):
        tensors.append(tensor)
        return {"tensor": len(tensors) - 1}

    text = json.dumps(Encoder(keep).encode(value, "args"), allow_nan=False)
    return Decoder(lambda place: tensors[place]).decode(json.loads(text))


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -3, 2**80, 1.0, 0.1, -0.0, 1e-320, "", 'a"\n\u00e9', b"\x00\xff"),
        *([], [1, [2.5, "x"]], (), (1, (None,)), {}, {"a": 1, 2: [3], (1, "b"): {}}, 2 - 3j),
        *(torch.float16, torch.device("cuda", 1), torch.Size([2, 3]), torch.strided, torch.channels_last),
        *(slice(None, 3), range(2, 9, 3), ..., Pair(1, [2]), OrderedDict(b=1, a=2)),
    ],
    ids=repr,
)
def test_value_comes_back_equal_and_of_its_type(value):
    back = through_json(value)
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_number_comes_back(value):
    assert repr(through_json([value])) == repr([value])


def test_tensors_in_containers_come_back_in_their_places():
    one, two = torch.zeros(1), torch.ones(2)
    back = through_json({"x": [one, (two, one)]})
    assert back["x"][0] is one
    assert back["x"][1][0] is two


def test_packed_sequence_comes_back():
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])
    back = through_json((packed,))[0]
    assert type(back) is type(packed)
    assert torch.equal(back.data, packed.data)
    assert torch.equal(back.batch_sizes, packed.batch_sizes)
    assert back.sorted_indices is None


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, {"a": (0, Colour.RED)}], r"args\[1\]\['a'\]\[1\] is a Colour"),
        ({3, 4}, "args is a set"),
        ({"f": len}, r"args\['f'\] is a builtin_function_or_method"),
        ([int], r"args\[0\] is int"),
        ([nn.Linear(1, 1)], r"args\[0\] is a Linear"),
        ([torch.zeros(2, device="meta")], r"args\[0\] is a torch.strided tensor on meta"),
    ],
)
def test_what_has_no_json_is_declined_with_its_path(value, said):
    with pytest.raises(BundleError, match=said):
        Encoder(TensorPacker().add).encode(value, "args")


def test_endless_list_is_declined():
    endless: list = []
    endless.append(endless)
    with pytest.raises(BundleError, match="too deep"):
        Encoder(lambda tensor, path: None).encode(endless, "args")


@pytest.mark.parametrize(
    "described",
    [
        {"eval": "1"},
        {"named": ["os", "system", ["true"]]},
        {"named": ["os", "terminal_size", [[1, 2]]]},
        {"named": ["nanscope_is_not_imported", "Pair", []]},
        {"dtype": "nn"},
        {"constant": "nn"},
        {"module": "a"},
        {"range": []},
        {"bytes": "?"},
        {"tensor": 0, "list": []},
        ["bare"],
    ],
    ids=str,
)
def test_description_that_no_encoder_wrote_is_refused(described):
    with pytest.raises(BundleError):
        Decoder(lambda place: torch.zeros(1)).decode(described)
