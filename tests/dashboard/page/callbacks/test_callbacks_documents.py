"""The sections of documents: those that a rank has, in their order; odd input changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from dash import html, no_update
from dash.development.base_component import Component
from store_reference import RUN, begin, stream_key

from dashboard.page.callbacks.documents import documents_view
from dashboard.page.views.document_sections import Section
from dashboard.store.duck import DuckStore
from dashboard.store.protocol import StoredDocument
from probe.wire import Document, encode


def keys(documents: Sequence[StoredDocument]) -> Component:
    return html.Div(", ".join(one.document.key for one in documents))


KINDS = ("memory", "profile", "region")
SECTIONS = [Section(kind=kind, title=kind.title(), place="there", content=keys) for kind in KINDS]


@pytest.fixture
def store(tmp_path):
    opened = DuckStore(tmp_path)
    begin(opened)
    for number, (kind, key) in enumerate((("region", "<b>x</b>"), ("memory", "one"), ("memory", "two"))):
        document = Document(kind=kind, key=key, time=float(number), body=b"{}")
        opened.append(stream_key("events"), 2 + number, [encode(document)])
    yield opened
    opened.close()


def test_sections_are_those_that_the_rank_has_in_their_order(store):
    memory, region = documents_view(store, {"run": RUN}, SECTIONS)
    assert memory.id == "documents-memory" and "one, two" in repr(memory) and "'2'" in repr(memory)
    assert region.children[1].children.children == "<b>x</b>"


@pytest.mark.parametrize("asked", [{"run": "other"}, {"run": RUN, "rank": 7}])
def test_run_or_rank_without_documents_has_no_section(store, asked):
    assert documents_view(store, asked, SECTIONS) == []


@pytest.mark.parametrize(
    "asked", [None, 3, {}, {"run": 5}, {"run": RUN, "rank": -1}, {"run": RUN, "mark": "x"}]
)
def test_malformed_asking_changes_nothing(store, asked):
    assert documents_view(store, asked, SECTIONS) is no_update
