"""Which sections the page has for documents (snapshots, profiles, regions), and their frame. Pure.

A section is a line of `SECTIONS`: the kind of its documents, a title, and what makes its content of them.
A run that has no document of a kind has no such section.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dash import html
from dash.development.base_component import Component

from probe.wire import compared_modes, profiles, start_facts
from probe.wire.denoising import DENOISING_KIND
from probe.wire.memory_snapshots import MEMORY_SNAPSHOT
from probe.wire.region_times import REGION_KIND

from ... import ids
from ...store.protocol import StoredDocument
from .denoising_section import denoising_section
from .memory_section import memory_section
from .optimization_table import optimization_table
from .profile_section import profile_content
from .region_table import region_table
from .start_facts_table import start_facts_table

Content = Callable[[Sequence[StoredDocument]], Component]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of a view."""

    kind: str
    """Of the documents, see `probe.wire.Document`."""
    title: str
    place: str
    """Id of the element that it stands in."""
    content: Content
    """Makes the inside out of a rank's documents, at least one, by time. A document whose body does not
    decode is named as such, never fatal."""


SECTIONS: Final[tuple[Section, ...]] = (
    Section(kind=MEMORY_SNAPSHOT, place=ids.DOCUMENTS_MEMORY, title="Snapshots", content=memory_section),
    Section(kind=profiles.KIND, place=ids.DOCUMENTS_PROFILE, title="Profiles", content=profile_content),
    Section(kind=REGION_KIND, place=ids.DOCUMENTS_PROFILE, title="Regions", content=region_table),
    Section(kind=DENOISING_KIND, place=ids.DOCUMENTS_PROFILE, title="Denoising", content=denoising_section),
    Section(
        kind=compared_modes.KIND,
        place=ids.DOCUMENTS_PROFILE,
        title="Optimisations",
        content=optimization_table,
    ),
    Section(kind=start_facts.KIND, place=ids.DOCUMENTS_SYSTEM, title="Run", content=start_facts_table),
)
PLACES: Final = tuple(dict.fromkeys(section.place for section in SECTIONS))


def section_frame(section: Section, documents: Sequence[StoredDocument]) -> Component:
    """Return a section, open, with the number of its documents behind the title."""
    count = html.Span(f"{len(documents):,}", className="ns-small")
    return html.Details(
        [
            html.Summary([f"{section.title} ", count]),
            html.Div(section.content(documents), className="ns-card"),
        ],
        id=f"documents-{section.kind}",
        open=True,
        className="ns-logged",
    )
