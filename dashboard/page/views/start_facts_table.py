"""What a run was started with: options, hyperparameters, seeds, changes of its work tree. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dash import html
from dash.development.base_component import Component

from probe.errors import WireError
from probe.wire.documents import read_body
from probe.wire.start_facts import StartFacts, WorkTree

from ...store.protocol import StoredDocument
from .quantities import bytes_text


def start_facts_table(documents: Sequence[StoredDocument]) -> Component:
    """Return the facts of the newest start; names and values are shown as text."""
    try:
        facts = read_body(documents[-1].document, StartFacts)
    except WireError as error:
        return html.P(f"What the run was started with cannot be read: {error}")
    source = f" ({facts.config_source})" if facts.config_source else ""
    parts = [
        *_table(f"Hyperparameters{source}", facts.config),
        *_table("Options of watch", facts.options),
        *_table("Seeds", facts.seeds),
        *(_work_tree(facts.work_tree) if facts.work_tree is not None else []),
    ]
    return html.Div(parts or [html.P("Only defaults.")])


def _table(title: str, pairs: Mapping[str, str]) -> list[Component]:
    if not pairs:
        return []
    rows = [html.Tr([html.Th(name, scope="row"), html.Td(value)]) for name, value in pairs.items()]
    return [html.H3(title), html.Table(html.Tbody(rows), className="ns-pairs")]


def _work_tree(found: WorkTree) -> list[Component]:
    size = bytes_text(found.size_bytes) + ("" if found.is_whole else " and more")
    facts = {"Changed files": ", ".join(found.files), "Size of the diff": size, "sha256": found.sha256}
    shown = [html.Details([html.Summary("The diff"), html.Pre(found.diff)])] if found.diff else []
    return [*_table("Changed since the commit", facts), *shown]
