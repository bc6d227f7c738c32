"""The table of regions: a row for each, what is slow is marked, text stays text, a bad body is named."""

from __future__ import annotations

import msgspec
from dash import html

from dashboard.page.views.region_table import region_table
from dashboard.store.protocol import StoredDocument
from probe.wire import Document
from probe.wire.region_times import RegionBody


def stored(path: str, body: bytes | None = None, **fields: object) -> StoredDocument:
    made = RegionBody(
        **{
            "path": path,
            "count": 1200,
            "errors": 0,
            "total_s": 24.0,
            "mean_s": 0.02,
            "running_mean_s": 0.5,
            "max_s": 1.5,
            "last_s": 0.5,
            **fields,
        }
    )
    data = msgspec.json.encode(made) if body is None else body
    document = Document(kind="region", key=path, time=1.0, body=data)
    return StoredDocument(run="r", rank=0, incarnation=1, document=document)


def rows(*documents: StoredDocument) -> list[list[str]]:
    table = region_table(documents).children
    assert isinstance(table, html.Table)
    return [[cell.children for cell in row.children] for row in table.children[1].children]


def test_regions_are_rows_by_name_with_units() -> None:
    fields = {"max_rss_delta_bytes": 3 * 2**20, "cuda_bytes": 2**30, "gradient_anomalies": 2, "errors": 1}
    last, first = rows(stored("b"), stored("a/b", slow_above_s=0.6, **fields))[::-1]
    assert first == ["a/b", "1,200", "20 ms", "500 ms", "600 ms", "1.5 s", "3 MiB", "1 GiB", "2", "1"]
    assert last == ["b", "1,200", "20 ms", "500 ms", "", "1.5 s", "0 B", "", "", ""]


def test_region_above_its_limit_is_marked_by_words() -> None:
    (row,) = rows(stored("a", slow_above_s=0.4))
    assert row[3].endswith("500 ms, too slow")


def test_body_that_does_not_decode_is_named_and_the_others_are_shown() -> None:
    found = rows(stored("<b>bad</b>", b"[]"), stored("good"))
    assert found[0] == ["<b>bad</b>", "cannot be read"] and found[1][0] == "good"
