"""Records and messages: round trips and limits; nothing from outside decodes as something else."""

import json
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe import wire
from probe.errors import WireError
from probe.wire.columns import pack_block, pack_column, unpack_column, unpack_missing
from probe.wire.event_json import event_json, read_event_json

START = wire.RunStart(run="run-1", rank=0, incarnation=7, name="train.py", time=1.5)
EVENT = wire.Event(
    id="0123456789abcdef",
    run="run-1",
    rank=0,
    incarnation=7,
    step=400,
    time=2.5,
    kind="nonfinite_loss",
    severity="critical",
    message="NaN first at step 400",
    evidence=wire.Evidence(value=math.nan, threshold=-math.inf, neighbours=[(399, math.inf)]),
    origin=wire.Origin(phase="forward", op="rsqrt", module=""),
    stacks=wire.Stacks(forward=[wire.StackFrame(file="a.py", line=3, function="f", code="x\ny")]),
)
KEY = wire.StreamKey(run="run-1", writer="0-7", stream="metrics")
FRAME = wire.Frame(step=3, time=1.0, columns=[pack_column("grad_norm", np.array([1.0, math.nan]))])


@pytest.mark.parametrize("record", [START, FRAME, wire.RunEnd(time=1.0, step=None, outcome="finished")])
def test_record_survives_the_round_trip(record: wire.Record) -> None:
    assert wire.decode_record(wire.encode(record)) == record


def test_event_keeps_nan_and_inf_on_the_wire() -> None:
    decoded = wire.decode_record(wire.encode(EVENT))
    assert isinstance(decoded, wire.Event)
    assert math.isnan(decoded.evidence.value or 0.0)
    assert decoded.evidence.threshold == -math.inf


@pytest.mark.parametrize(
    "message",
    [
        wire.Hello(version=1, nonce=b"n" * 32),
        wire.Batch(key=KEY, first_seq=5, records=[b"a", b""]),
        wire.Skip(key=KEY, first_seq=5, end_seq=9, reason="evicted"),
        wire.Ack(key=KEY, next_seq=9),
        wire.Watch(run="run", ranks=[3, 7]),
    ],
)
def test_message_survives_the_round_trip(message: wire.Message) -> None:
    assert wire.decode_message(wire.encode(message)) == message


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "../etc"},
        {"run": "run\n"},
        {"run": ".."},
        {"run": "x" * 65},
        {"rank": -1},
        {"rank": 2**63},
        {"argv": ["a"] * 1001},
        {"name": "x" * 5000},
        {"time": "now"},
    ],
)
def test_record_outside_its_limits_is_refused(changes: dict[str, object]) -> None:
    fields = {"t": "run_start", "run": "run-1", "rank": 0, "incarnation": 1, **changes}
    with pytest.raises(WireError, match="does not decode"):
        wire.decode_record(msgspec.msgpack.encode(fields))


def test_record_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(WireError, match="does not decode"):
        wire.decode_record(msgspec.msgpack.encode({"t": "shell", "command": "true"}))


def test_record_with_unknown_fields_of_a_newer_probe_is_read() -> None:
    fields = {**msgspec.to_builtins(START), "novelty": 1}
    assert wire.decode_record(msgspec.msgpack.encode(fields)) == START


def test_record_and_message_over_the_size_limit_are_refused() -> None:
    with pytest.raises(WireError, match="at most"):
        wire.decode_record(b"\0" * (wire.MAX_RECORD_BYTES + 1))
    with pytest.raises(WireError, match="at most"):
        wire.decode_message(b"\0" * (wire.MAX_MESSAGE_BYTES + 1))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_wire_error(data: bytes) -> None:
    for decode, kinds in ((wire.decode_record, wire.Record), (wire.decode_message, wire.Message)):
        try:
            decoded = decode(data)
        except WireError:
            continue
        assert isinstance(decoded, kinds)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=20))
def test_column_keeps_every_value_within_its_precision(values: list[float]) -> None:
    array = np.array(values)
    column = pack_column("grad_norm", array)
    unpacked = unpack_column(column)
    np.testing.assert_array_equal(np.isfinite(unpacked), np.isfinite(array))
    np.testing.assert_array_equal(unpacked == 0, array == 0)
    exact = array if column.dtype == "f8" else array.astype(np.float32).astype(np.float64)
    assert np.array_equal(unpacked, exact, equal_nan=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.floats(), min_size=3, max_size=3), min_size=1, max_size=4))
def test_block_is_packed_as_its_columns_are(rows: list[list[float]]) -> None:
    names = [f"column {row}" for row in range(len(rows))]
    alone = [pack_column(name, np.array(row)) for name, row in zip(names, rows, strict=True)]
    assert pack_block(names, np.array(rows)) == alone


def test_column_widens_only_for_values_that_float32_cannot_hold() -> None:
    assert pack_column("a", np.array([1.0, 0.0, math.inf])).dtype == "f4"
    assert pack_column("a", np.array([1e300])).dtype == "f8"
    assert pack_column("a", np.array([1e-300])).dtype == "f8"


def test_column_of_a_broken_length_is_refused() -> None:
    with pytest.raises(WireError, match="no multiple of 4"):
        unpack_column(wire.Column(name="a", dtype="f4", data=b"12345"))


def test_missing_mask_round_trips_and_a_short_one_is_refused() -> None:
    mask = np.array([True, False, True] * 5)
    frame = wire.Frame(step=0, time=0.0, missing=np.packbits(mask).tobytes())
    assert unpack_missing(frame, 15).tolist() == mask.tolist()
    with pytest.raises(WireError, match="covers 16 of 17"):
        unpack_missing(frame, 17)


def test_event_json_is_read_back_whole() -> None:
    read = read_event_json(json.loads(json.dumps(event_json(EVENT), allow_nan=False)))
    assert repr(read) == repr(EVENT), "NaN equals itself there"


@pytest.mark.parametrize(
    "change",
    [{"id": "x"}, {"evidence": None}, {"evidence": {"neighbours": [3]}}, {"step": "7"}, {"stacks": 3}],
)
def test_json_that_is_no_event_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="not an event"):
        read_event_json({**event_json(EVENT), **change})


def test_event_json_is_strict_json_with_every_field_of_the_contract() -> None:
    fields = json.loads(json.dumps(event_json(EVENT), allow_nan=False))
    expected = (
        "v id run rank incarnation model step micro_step time kind severity subject message evidence origin"
        " noticed_at propagated_to stacks advice count last_step ended data"
    )
    assert list(fields) == expected.split()
    assert fields["evidence"] == {
        "value": "NaN",
        "threshold": "-Infinity",
        "baseline": None,
        "neighbours": [{"step": 399, "value": "Infinity"}],
        "tensors": [],
    }
    assert list(fields["origin"]) == ["phase", "op", "module", "stage"]
    assert list(fields["stacks"]["forward"][0]) == ["file", "line", "function", "code", "code_first_line"]


def test_event_id_is_deterministic_and_tells_faults_apart() -> None:
    identity = {"run": "r", "rank": 0, "incarnation": 1, "model": "m", "kind": "k", "subject": "s", "step": 3}
    first = wire.event_id(**identity)  # type: ignore[arg-type]
    assert first == wire.event_id(**identity)  # type: ignore[arg-type]
    others = [
        wire.event_id(**{**identity, name: "z" if isinstance(v, str) else 9}) for name, v in identity.items()
    ]  # type: ignore[arg-type]
    assert len({first, *others}) == 8


def test_handshake_proof_of_one_side_is_none_of_the_other() -> None:
    collector = wire.handshake_proof(b"secret", "collector", b"a", b"b")
    assert collector == wire.handshake_proof(b"secret", "collector", b"a", b"b")
    assert collector != wire.handshake_proof(b"secret", "helper", b"a", b"b")
    assert collector != wire.handshake_proof(b"other", "collector", b"a", b"b")
