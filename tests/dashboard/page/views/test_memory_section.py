"""The table of memory snapshots: values, differences to the one before, the trend, and odd documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from dash.development.base_component import Component

from dashboard.page.views.document_sections import SECTIONS, section_frame
from dashboard.page.views.memory_section import ROWS, memory_section, trend_sentence
from dashboard.store.protocol import StoredDocument
from probe.wire import Document
from probe.wire.documents import make_document
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT, CudaMemory, MemorySnapshot

MIB = 2**20
DEVICE = CudaMemory(
    device=1,
    name="H100",
    allocated_bytes=60 * MIB,
    reserved_bytes=100 * MIB,
    peak_allocated_bytes=90 * MIB,
    peak_reserved_bytes=100 * MIB,
    total_bytes=80 * 1024 * MIB,
    retries=2,
    ooms=1,
    segments=3,
)


def snapshot(number: int, *, mib: float, **fields: Any) -> MemorySnapshot:
    made: dict[str, Any] = {"label": f"number {number}", "cause": "call", "step": 10 * number}
    made |= {"time": 100.0 + number, "rss_bytes": int(mib * MIB)} | fields
    return MemorySnapshot(**made)


def stored(body: MemorySnapshot, incarnation: int = 1) -> StoredDocument:
    document = make_document(body, kind=MEMORY_SNAPSHOT, key=body.label, step=body.step, time=body.time)
    return StoredDocument(run="a", rank=0, incarnation=incarnation, document=document)


def texts(part: Any) -> Iterator[str]:
    """All text of a tree, in order."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, Component):
        yield from texts(getattr(part, "children", None))
    elif isinstance(part, list):
        for one in part:
            yield from texts(one)


def rows(part: Any) -> list[list[str]]:
    """Each row of the table as the texts of its cells."""
    found = []
    for one in part._traverse() if isinstance(part, Component) else ():
        if type(one).__name__ == "Tr":
            found.append(["".join(texts(cell)) for cell in one.children])
    return found


def test_table_has_the_newest_first_with_what_has_changed() -> None:
    shown = memory_section([stored(snapshot(1, mib=100)), stored(snapshot(2, mib=164, uss_bytes=5 * MIB))])
    assert rows(shown) == [
        ["Snapshot", "Step", "Taken by", "Process", "Its own pages", "Machine in use"],
        ["number 2", "20", "the script", "164 MiB +64 MiB", "5 MiB", "-"],
        ["number 1", "10", "the script", "100 MiB", "-", "-"],
    ]


def test_columns_of_cuda_and_tracked_tensors_come_where_there_are_any() -> None:
    one = snapshot(1, mib=1, cuda=(DEVICE,), tracked_tensors=2, tracked_bytes=3 * MIB, cause="epoch")
    shown = memory_section([stored(one)])
    assert rows(shown)[0][-4:] == ["Tracked tensors", "CUDA allocated", "CUDA reserved", "CUDA peak"]
    assert rows(shown)[1][2:] == [
        *("end of epoch", "1 MiB", "-", "-"),
        *("3 MiB", "60 MiB", "100 MiB", "90 MiB"),
    ]
    assert any("cuda:1 H100: 40 MiB reserved and in no tensor" in text for text in texts(shown))


def test_starts_of_a_rank_are_processes_of_their_own() -> None:
    first, second = snapshot(1, mib=500), snapshot(2, mib=100)
    shown = memory_section([stored(first, incarnation=1), stored(second, incarnation=2)])
    assert [row[3] for row in rows(shown)[1:]] == ["100 MiB", "500 MiB"]


def test_trend_is_said_in_bytes_a_step() -> None:
    growing = [snapshot(number, mib=100 + 20 * number) for number in range(6)]
    assert trend_sentence(growing).startswith("The process grows by 2 MiB per step (95 % interval +2 MiB to")
    still = [snapshot(number, mib=100 + number % 2) for number in range(6)]
    assert trend_sentence(still).startswith("No significant growth")
    timed = [snapshot(number, mib=100 + 3 * number, step=None) for number in range(6)]
    assert "3 MiB per second" in trend_sentence(timed)
    assert trend_sentence(growing[:2]) == ""


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"label": 3}', b'{"label":"a","cause":"call","time":"x"}'])
def test_snapshot_that_does_not_decode_is_counted_and_never_fatal(body: bytes) -> None:
    odd = Document(kind=MEMORY_SNAPSHOT, key="x", time=1.0, body=body)
    documents = [StoredDocument(run="a", rank=0, incarnation=1, document=odd), stored(snapshot(1, mib=1))]
    shown = memory_section(documents)
    assert "Snapshots of another version, which cannot be read: 1." in list(texts(shown))
    assert len(rows(shown)) == 2
    assert rows(memory_section(documents[:1])) == []


def test_long_table_is_cut_and_says_so() -> None:
    many = [stored(snapshot(number, mib=number)) for number in range(ROWS + 20)]
    shown = memory_section(many)
    assert len(rows(shown)) == ROWS + 1 and rows(shown)[1][0] == f"number {ROWS + 19}"
    assert f"The newest {ROWS} of {ROWS + 20} are shown." in list(texts(shown))


def test_labels_are_shown_as_text_in_a_folded_section() -> None:
    (section,) = [one for one in SECTIONS if one.kind == MEMORY_SNAPSHOT]
    frame = section_frame(section, [stored(snapshot(1, mib=1, label="<script>x</script>"))])
    assert "<script>x</script>" in list(texts(frame)) and "Snapshots " in list(texts(frame))
    assert json.loads(msgspec.json.encode(frame.to_plotly_json(), enc_hook=lambda one: one.to_plotly_json()))
