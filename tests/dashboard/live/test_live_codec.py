"""The delta encoder against a plain decoder that follows the layout in its docstring."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.live.codec import DeltaEncoder, common_prefix, shift

VALUES = st.lists(st.sampled_from([0.0, 1.0, 2.5, float("nan"), float("inf"), -1.0]), max_size=12)


class Client:
    """Does what `assets/ns_10_codec.js` does."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.payload_elements = 0

    def decode(self, message: bytes) -> dict[str, Any]:
        (length,) = struct.unpack_from("<I", message)
        header = json.loads(message[4 : 4 + length])
        at = 4 + length
        for key, dtype, drop, keep, count in header["arrays"]:
            tail = np.frombuffer(message, dtype=f"<{dtype}", count=count, offset=at)
            at += tail.nbytes
            old = self.arrays.get(key, np.empty(0, dtype=tail.dtype))[drop : drop + keep]
            assert len(old) == keep
            self.arrays[key] = np.concatenate([old, tail]) if keep else tail
            self.payload_elements += count
        assert at == len(message)
        return dict(header)


@given(st.lists(st.tuples(VALUES, st.integers(0, 12)), min_size=1, max_size=6))
def test_encoder_any_sequence_of_arrays_arrives_bit_for_bit(rounds: list[tuple[list[float], int]]) -> None:
    encoder, client = DeltaEncoder(), Client()
    for values, drop in rounds:
        array = np.array(values, dtype="<f4")
        encoder.add("a", array, drop=drop)
        client.decode(encoder.finish({}))
        held = client.arrays.get("a", np.empty(0, dtype="<f4"))
        assert held.tobytes() == array.tobytes()


def test_encoder_growing_array_sends_only_the_new_end() -> None:
    encoder, client = DeltaEncoder(), Client()
    for length in (1000, 1003):
        encoder.add("a", np.arange(length, dtype="<f8"))
        client.decode(encoder.finish({}))
    assert client.payload_elements == 1003


def test_encoder_sliding_array_sends_only_the_new_end() -> None:
    encoder, client = DeltaEncoder(), Client()
    for first in (0, 3):
        array = np.arange(first, first + 100, dtype="<f8")
        encoder.add("a", array, drop=shift(encoder.held("a"), array))
        client.decode(encoder.finish({}))
    assert client.payload_elements == 103
    assert client.arrays["a"][0] == 3


def test_encoder_unchanged_array_is_left_out() -> None:
    encoder = DeltaEncoder()
    array = np.array([1.0, np.nan], dtype="<f4")
    encoder.add("a", array)
    encoder.finish({})
    encoder.add("a", array.copy())
    assert Client().decode(encoder.finish({}))["arrays"] == []


def test_encoder_changed_dtype_sends_all() -> None:
    encoder, client = DeltaEncoder(), Client()
    encoder.add("a", np.array([1.0], dtype="<f4"))
    client.decode(encoder.finish({}))
    encoder.add("a", np.array([1.0], dtype="<f8"))
    client.decode(encoder.finish({}))
    assert client.arrays["a"].dtype == np.dtype("<f8")


@pytest.mark.parametrize("array", [np.zeros(3, dtype=np.int64), np.zeros((2, 2), dtype=np.float32)])
def test_encoder_other_arrays_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="array 'a'"):
        DeltaEncoder().add("a", array)


def test_encoder_non_finite_header_value_becomes_null() -> None:
    assert Client().decode(DeltaEncoder().finish({"x": float("nan")}))["x"] is None


def test_common_prefix_tells_zero_from_negative_zero() -> None:
    assert common_prefix(np.array([0.0], dtype="<f8"), np.array([-0.0], dtype="<f8")) == 0


def test_shift_without_overlap_drops_all() -> None:
    assert shift(np.array([1.0, 2.0]), np.array([5.0])) == 2
