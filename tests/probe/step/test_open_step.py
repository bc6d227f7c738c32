"""The number of samples of a step: the first dimension of the first tensor, wherever the batch has it."""

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from probe.step.open_step import batch_size


class Batch(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor


PACKED = pack_sequence([torch.zeros(2, 4), torch.zeros(5, 4), torch.zeros(1, 4)], enforce_sorted=False)
IMAGES, LABELS = torch.zeros(7, 3), torch.zeros(5)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((IMAGES, LABELS), {}, 7),
        ((), {"labels": LABELS, "images": IMAGES}, 5),
        (("a word", None, 3, IMAGES), {}, 7),
        (({"images": IMAGES, "labels": LABELS},), {}, 7),
        ((OrderedDict(names=["a", "b"], images=IMAGES),), {}, 7),
        (([IMAGES, LABELS],), {}, 7),
        ((Batch(IMAGES, LABELS),), {}, 7),
        (([{"images": IMAGES}],), {}, 7),
        (([[[IMAGES]]],), {}, 0),
        ((PACKED,), {}, 3),
        (([PACKED],), {}, 3),
        ((torch.tensor(3.0),), {}, 0),
        ((list(range(100_000)), "text"), {}, 0),
        ((), {}, 0),
    ],
)
def test_samples_are_counted_by_the_first_tensor(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: int
) -> None:
    assert batch_size(args, kwargs) == expected
