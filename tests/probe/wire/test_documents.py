"""Documents: a struct goes in, the same struct comes out; what does not fit its kind is refused."""

from __future__ import annotations

import msgspec
import pytest

from probe.errors import WireError
from probe.wire import MAX_DOCUMENT_BYTES, Document, decode_record, encode
from probe.wire.documents import make_document, read_body


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    label: str
    rss_bytes: int


def document(**fields: object) -> Document:
    facts = {"kind": "snapshot", "key": "1", "step": 3, "time": 2.0} | fields
    return make_document(Snapshot(label="epoch 1", rss_bytes=5), **facts)  # type: ignore[arg-type]


def test_document_comes_back_from_the_wire_as_its_struct() -> None:
    record = decode_record(encode(document()))
    assert isinstance(record, Document) and (record.kind, record.key, record.step) == ("snapshot", "1", 3)
    assert read_body(record, Snapshot) == Snapshot(label="epoch 1", rss_bytes=5)


@pytest.mark.parametrize("body", [b"", b"{", b'{"label": 1, "rss_bytes": 5}', b"[" * 5000, b"\xff"])
def test_body_that_its_kind_does_not_have_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="snapshot"):
        read_body(msgspec.structs.replace(document(), body=body), Snapshot)


@pytest.mark.parametrize("kind", ["", "Snapshot", "a b", "x" * 65, "../x"])
def test_kind_that_is_no_name_is_refused_by_a_reader(kind: str) -> None:
    with pytest.raises(WireError):
        decode_record(encode(document(kind=kind)))


def test_body_above_the_limit_is_refused_before_it_is_written() -> None:
    with pytest.raises(WireError, match="at most"):
        make_document("x" * MAX_DOCUMENT_BYTES, kind="snapshot", key="", step=None, time=0.0)


def test_long_key_is_cut_off() -> None:
    assert len(document(key="k" * 1000).key) == 512
