"""Data of the script's own events: plain values arrive as they are, everything else bounded."""

import enum
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe import wire
from probe.incidents.event_data import plain_data, severity_of
from probe.wire.event_json import jsonable


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class Color(enum.Enum):
    WARNING = "warning"
    red = 1


KEPT = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=30)
NESTED = st.recursive(
    KEPT | st.binary(max_size=4) | st.complex_numbers() | st.builds(Silent),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=200,
)


@given(st.dictionaries(st.text(max_size=20), KEPT, min_size=1, max_size=6))
def test_plain_values_arrive_unchanged(data: dict[str, Any]) -> None:
    found = plain_data(data)
    assert found is not None and repr(found) == repr(data)


@given(st.dictionaries(st.text(max_size=3000), NESTED, max_size=40))
def test_any_data_are_bounded_and_read_back(data: dict[str, Any]) -> None:
    found = plain_data(data)
    event = wire.Event(
        id="0" * 16, run="r", rank=0, incarnation=1, step=1, time=1.0, kind="custom", severity="info",
        message="m", data=found,
    )  # fmt: skip
    read = wire.decode_record(wire.encode(event))
    assert isinstance(read, wire.Event) and repr(read.data) == repr(found)
    assert len(msgspec.json.encode(jsonable(found))) <= wire.MAX_DATA_BYTES


@pytest.mark.parametrize(
    ("given_value", "arrives"),
    [
        (torch.tensor(2.5), 2.5),
        (torch.tensor([3]), 3),
        (torch.tensor([[1.0, 2.0]], requires_grad=True), [[1.0, 2.0]]),
        (torch.zeros(200, dtype=torch.bfloat16), "tensor bfloat16 [200]"),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.arange(3), [0, 1, 2]),
        ((1, [2, {"a": None}]), [1, [2, {"a": None}]]),
        ({1: "one"}, {"1": "one"}),
        (2**70, str(2**70)),
        (torch.float32, "torch.float32"),
    ],
)
def test_value_arrives_as(given_value: object, arrives: object) -> None:
    assert plain_data({"x": given_value}) == {"x": arrives}


def test_nan_and_inf_are_the_strings_of_the_interface_in_json() -> None:
    found = jsonable(plain_data({"n": math.nan, "l": [torch.tensor(-math.inf)]}))
    assert found == {"n": "NaN", "l": ["-Infinity"]}


def test_value_whose_text_raises_is_named_by_its_class() -> None:
    assert "Silent" in plain_data({"x": Silent()})["x"]  # type: ignore[index]


def test_what_contains_itself_ends_at_the_depth() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    found: Any = plain_data({"x": endless})
    for _ in range(wire.MAX_DATA_DEPTH - 1):
        found = found["x"][1] if isinstance(found, dict) else found[1]
    assert isinstance(found[1], str)


def test_more_than_there_is_room_for_is_said() -> None:
    found = plain_data({f"k{number}": "x" * 1000 for number in range(100)})
    assert found is not None and len(found) < 20 and found["..."].endswith(" more")


@pytest.mark.parametrize(
    ("word", "severity"),
    [("info", "info"), ("ERROR", "critical"), (Color.WARNING, "warning"), (Color.red, None), (3, None)],
)
def test_severity_of_words_of_logging_and_enums(word: object, severity: str | None) -> None:
    assert severity_of(word) == severity
