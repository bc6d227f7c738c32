"""What never comes from a callback is sent as HTML: Dash renders what its callbacks name, and no more.

React makes each component of a layout, and each listens to every change of Dash's state: eight hundred cost
0.3 s of a processor when a page opens, and a little at every answer. Called once per server, while it starts;
`assets/ns_05_parts.js` puts the parts into their places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from dash.development.base_component import Component

_HTML: Final = "dash_html_components"
_NAMES: Final = {"className": "class", "htmlFor": "for"}
_PLAIN: Final = frozenset(
    "id role title scope type value label href max placeholder tabIndex colSpan rowSpan maxLength".split()
)
_SWITCHES: Final = frozenset({"hidden", "disabled", "open"})
_VOID: Final = frozenset({"Br", "Hr", "Img", "Input", "Wbr"})


def callback_ids(callbacks: Mapping[str, Mapping[str, Any]], outputs: Collection[str]) -> set[str]:
    """Return the ids of all components that callbacks read or write.

    Args:
        callbacks: `Dash.callback_map`.
        outputs: more ids, of what scripts set through Dash.
    """
    found = set(outputs)
    for written, callback in callbacks.items():
        found.update(output.rsplit(".", 1)[0] for output in written.strip(".").split("..."))
        found.update(each["id"] for each in (*callback["inputs"], *callback["state"]))
    return found


def take_static(layout: Component, dynamic: Collection[str]) -> str:
    """Empty each element of the layout in which nothing is dynamic; return their contents as templates.

    The element itself stays a component, with the number of its template in `data-part`.

    Args:
        layout: changed in place.
        dynamic: ids of components that have to be Dash's own.

    Raises:
        ValueError: a static element has a property that is not known here.
    """
    parts: list[str] = []
    _take(layout, dynamic, parts)
    return "".join(f'<template data-part="{at}">{part}</template>' for at, part in enumerate(parts))


def _take(component: Component, dynamic: Collection[str], parts: list[str]) -> None:
    for child in _children(component):
        if not isinstance(child, Component):
            continue
        if not _is_static(child, dynamic):
            _take(child, dynamic, parts)
        elif any(isinstance(each, Component) for each in _children(child)):
            setattr(child, "data-part", str(len(parts)))
            parts.append("".join(map(_as_html, _children(child))))
            child.children = None


def _is_static(component: Component, dynamic: Collection[str]) -> bool:
    own = getattr(component, "id", None)
    return (
        component._namespace == _HTML
        and not isinstance(own, dict)  # one of a pattern that a callback matches
        and own not in dynamic
        and all(_is_static(each, dynamic) for each in _children(component) if isinstance(each, Component))
    )


def _children(component: Component) -> Sequence[Any]:
    held = getattr(component, "children", None)
    if held is None:
        return ()
    return held if isinstance(held, list | tuple) else (held,)


def _as_html(node: Any) -> str:
    if not isinstance(node, Component):
        return "" if node is None else escape(str(node), quote=False)
    tag = str(node._type).lower()
    start = " ".join([tag, *_attributes(node)])
    if node._type in _VOID:
        return f"<{start}>"
    return f"<{start}>{''.join(map(_as_html, _children(node)))}</{tag}>"


def _attributes(component: Component) -> Iterator[str]:
    for name, value in component.to_plotly_json()["props"].items():
        if value is None or name in ("children", "n_clicks"):
            continue
        if name in _SWITCHES:
            if value:
                yield name
        elif name in _NAMES or name in _PLAIN or name.startswith(("data-", "aria-")):
            yield f'{_NAMES.get(name, name.lower())}="{escape(str(value))}"'
        else:
            raise ValueError(f"{component._type} has {name}={value!r}: add it to {__name__}")
