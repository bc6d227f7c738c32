"""What stands beside a file and a line: a button that copies both, and room for the link to an editor. Pure.

`assets/ns_88_editor.js` adds the link where somebody has chosen an editor.
"""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from probe.wire import StackFrame

from .visible_text import visible_text


def source_buttons(frame: StackFrame | None, *, id_: str = "") -> Component:
    """Return the button and the place of the link.

    Args:
        frame: The line; None where a script fills it in.
        id_: Id of the element; "" for none.
    """
    place = "" if frame is None else f"{frame.file}:{frame.line}"
    copy = html.Button(
        "Copy path:line",
        className="source-copy",
        type="button",
        # A line feed in a file's name would run what follows it in a terminal.
        **{"data-text": visible_text(place)},
    )
    facts = {} if frame is None else {"data-file": frame.file, "data-line": str(frame.line)}
    named = {"id": id_} if id_ else {}
    return html.Span(copy, className="ns-source", hidden=frame is None, **named, **facts)
