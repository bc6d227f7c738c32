"""A writer never writes what its reader refuses: texts and numbers of the script are made to fit."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe import wire
from probe.errors import WireError
from probe.wire.fitting import fitted

TEXT = st.one_of(
    st.text(st.characters(codec=None), max_size=40),
    st.builds(str.__mul__, st.sampled_from(["x", "\udcff", "ä", "\x00"]), st.integers(4000, 70_000)),
)
NUMBER = st.one_of(
    st.floats(),
    st.integers(),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(-(2**63), 2**63 - 1)),
    st.booleans(),
    TEXT,
    st.none(),
)
ANYTHING = st.recursive(
    NUMBER,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
EVENT = wire.Event(
    id="0123456789abcdef", run="r", rank=0, incarnation=7, step=4, time=2.5, kind="custom",
    severity="info", message="m",
)  # fmt: skip


def changed(record: wire.Record, **fields: object) -> wire.Record:
    return msgspec.structs.replace(record, **fields)


@given(TEXT, TEXT, NUMBER, st.dictionaries(TEXT, NUMBER, max_size=4), ANYTHING)
def test_event_of_any_texts_and_numbers_is_read_back(
    text: str, name: str, number: object, numbers: dict[str, object], data: object
) -> None:
    evidence = wire.Evidence(value=number, threshold=number, baseline=numbers)  # type: ignore[arg-type]
    given_data = data if isinstance(data, dict) else {name: data}
    event = changed(
        EVENT, message=text, subject=name, model=name, kind=text, evidence=evidence, propagated_to=[text],
        advice=[name], data=given_data, origin=wire.Origin(phase="forward", op=text, module=name),
    )  # fmt: skip
    read = wire.decode_record(wire.encode_record(event))
    assert isinstance(read, wire.Event)
    clean = text.encode("utf-8", "replace").decode()
    assert clean.startswith(read.message) and len(read.message) == min(len(clean), 4096)
    assert (read.id, read.step, read.time) == (EVENT.id, EVENT.step, EVENT.time)
    if type(number) is float:
        assert read.evidence.value == number or math.isnan(number)


@given(st.lists(TEXT, max_size=3), TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
def test_run_start_of_any_texts_is_read_back(argv: list[str], name: str, versions: dict[str, str]) -> None:
    start = wire.RunStart(
        run="r", rank=0, incarnation=7, argv=argv, name=name, versions=versions, model=name, host=name,
        working_directory=name, git_commit=name, devices=argv,
    )  # fmt: skip
    read = wire.decode_record(wire.encode_record(start))
    assert isinstance(read, wire.RunStart) and len(read.argv) == len(argv)
    assert len(read.name) == min(len(name), 4096)


@given(TEXT, TEXT, st.lists(st.integers(0, 2**40), max_size=80))
def test_layout_of_any_names_is_read_back_row_by_row(name: str, kind: str, shape: list[int]) -> None:
    parameters = [wire.ParameterInfo(name=name, shape=shape, dtype=kind, layer=0)] * 3
    layout = wire.Layout(
        layout=0, model=name, parameters=parameters, layers=[wire.LayerInfo(name=name, type=kind)]
    )
    read = wire.decode_record(wire.encode_record(layout))
    assert isinstance(read, wire.Layout) and len(read.parameters) == 3
    assert read.parameters[0].shape == shape[:64]


@given(TEXT, st.binary(max_size=9))
def test_document_of_any_key_is_read_back(key: str, body: bytes) -> None:
    read = wire.decode_record(wire.encode_record(wire.Document(kind="region", key=key, time=1.0, body=body)))
    assert isinstance(read, wire.Document) and (read.body, len(read.key)) == (body, min(len(key), 512))


@given(st.dictionaries(TEXT, st.floats(), max_size=4), st.floats())
def test_frame_of_any_logged_names_is_read_back(scalars: dict[str, float], time: float) -> None:
    read = wire.decode_record(wire.encode(wire.Frame(step=1, time=time, scalars=scalars)))
    assert isinstance(read, wire.Frame)
    assert {name.encode("utf-8", "replace").decode() for name in scalars} == set(read.scalars)


@pytest.mark.parametrize("fields", [{"run": "a b"}, {"id": "x"}, {"severity": "loud"}, {"step": None}])
def test_record_that_cannot_be_made_to_fit_is_refused_when_it_is_written(fields: dict[str, object]) -> None:
    with pytest.raises(WireError):
        wire.encode_record(changed(EVENT, **fields))


def test_record_that_fits_is_left_as_it_is() -> None:
    assert fitted(EVENT) == EVENT
    assert wire.encode_record(EVENT) == wire.encode(EVENT)


def test_numbers_of_numpy_arrive_as_numbers() -> None:
    event = changed(EVENT, step=np.int64(3), evidence=wire.Evidence(value=np.float32(0.5)))
    read = wire.decode_record(wire.encode_record(event))
    assert isinstance(read, wire.Event) and (read.step, read.evidence.value) == (3, 0.5)


def test_data_deeper_than_the_limit_are_refused_by_the_reader() -> None:
    deep: object = 1
    for _ in range(wire.MAX_DATA_DEPTH + 1):
        deep = [deep]
    with pytest.raises(WireError):
        wire.decode_record(wire.encode(changed(EVENT, data={"deep": deep})))
