"""The section of samplings: newest first, marked where something is wrong, cut where it is long."""

from __future__ import annotations

import re

import pytest
from dash.development.base_component import Component

from dashboard.page.views.denoising_section import MOST_ROWS, MOST_SAMPLINGS, denoising_section, shown_rows
from dashboard.page.views.document_sections import SECTIONS
from dashboard.store.protocol import StoredDocument
from probe.wire import Document
from probe.wire.denoising import DENOISING_KIND, DenoisingBody, DenoisingRow
from probe.wire.documents import make_document


def row(step: int, **fields: object) -> DenoisingRow:
    return DenoisingRow(step=step, timestep=float(900 - step), std=2.0, expected_std=4.0, **fields)  # type: ignore[arg-type]


def stored(document: Document) -> StoredDocument:
    return StoredDocument(run="a", rank=0, incarnation=1, document=document)


def sampling(number: int, *rows: DenoisingRow, found: tuple[str, ...] = ()) -> StoredDocument:
    body = DenoisingBody(
        pipeline="<b>Mine</b>", scheduler="DDIMScheduler", steps=list(rows), found=list(found)
    )
    return stored(make_document(body, kind=DENOISING_KIND, key=f"{number:06d}", step=1, time=float(number)))


def text_of(component: Component | str | list[Component]) -> str:
    if isinstance(component, str):
        return component
    parts = component if isinstance(component, list) else getattr(component, "children", None) or []
    return " ".join(map(text_of, parts if isinstance(parts, list | tuple) else [parts]))


def test_newest_sampling_is_open_and_its_rows_have_the_ratio() -> None:
    section = denoising_section([sampling(7, row(0)), sampling(12, row(0), row(1))])
    newest, older = section.children
    assert (newest.open, older.open) == (True, False)
    assert newest.children[0].children == "Sampling 12: 2 steps of <b>Mine</b>, DDIMScheduler"
    assert "0.5" in text_of(newest)


@pytest.mark.capability(75)
def test_row_with_a_finding_is_marked_and_its_sentence_stands_above() -> None:
    bad = DenoisingRow(step=3, nan=5, found="diffusion_nonfinite")
    shown = text_of(denoising_section([sampling(0, row(2), bad, found=("Latents are not finite",))]))
    assert "\N{BLACK UP-POINTING TRIANGLE} Latents are not finite" in shown
    assert re.search("\N{BLACK UP-POINTING TRIANGLE} non-finite", shown)


def test_long_sampling_shows_its_ends_and_where_the_finding_begins() -> None:
    rows = [row(step, found="diffusion_drift" if step >= 613 else "") for step in range(1000)]
    shown = [one.step for one in shown_rows(rows)]
    assert len(shown) == MOST_ROWS
    assert {0, 613, 999} <= set(shown)
    assert shown == sorted(shown)
    assert "950 steps between these" in text_of(denoising_section([sampling(0, *rows)]))


def test_damaged_document_is_named_and_older_samplings_are_left_out() -> None:
    damaged = stored(Document(kind=DENOISING_KIND, key="000003", time=99.0, body=b"[]"))
    section = denoising_section([*(sampling(number, row(0)) for number in range(20)), damaged])
    assert len(section.children) == MOST_SAMPLINGS
    assert "Sampling 000003 cannot be read" in text_of(section)


def test_section_is_one_of_the_pages() -> None:
    assert [section.content for section in SECTIONS if section.kind == DENOISING_KIND] == [denoising_section]
