"""The body of a memory snapshot: read back whole, named in the documentation, refused where it is odd."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from probe.errors import WireError
from probe.wire import Document
from probe.wire.documents import make_document, read_body
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, CudaMemory, MemorySnapshot

PAGE = Path(__file__).resolve().parents[3] / "docs" / "interfaces.md"
DEVICE = CudaMemory(
    device=0,
    allocated_bytes=60,
    reserved_bytes=100,
    peak_allocated_bytes=90,
    peak_reserved_bytes=100,
    total_bytes=1000,
    retries=0,
    ooms=0,
    segments=1,
)


def test_body_is_read_back_as_it_was_written() -> None:
    body = MemorySnapshot(label="a", cause="epoch", time=1.0, rss_bytes=2**40, cuda=(DEVICE, DEVICE))
    document = make_document(body, kind=MEMORY_SNAPSHOT, key="a", step=3, time=1.0)
    assert read_body(document, MemorySnapshot) == body
    assert (body.cuda_sum("fragmentation_bytes"), body.cuda_sum("peak_allocated_bytes")) == (80, 180)
    assert MemorySnapshot(label="", cause="call", time=1.0).cuda_sum("reserved_bytes") is None


@pytest.mark.parametrize(
    "odd", [b'{"label":"a","cause":"else","time":1}', b'{"label":"a","cause":"call","time":1,"rss_bytes":-1}']
)
def test_body_of_odd_values_is_refused(odd: bytes) -> None:
    with pytest.raises(WireError, match="memory_snapshot does not decode"):
        read_body(Document(kind=MEMORY_SNAPSHOT, key="a", time=1.0, body=odd), MemorySnapshot)


def test_page_names_every_field() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("Kind `memory_snapshot`:")[2].partition("\n- ")[0]
    named = re.findall(r"`(\w+)`", text)
    fields = [
        field.name for struct in (MemorySnapshot, CudaMemory) for field in msgspec.structs.fields(struct)
    ]
    assert set(named) - {"call", "steps", "epoch", "request"} == set(fields)
