"""One more rule for Dash: text in components that a callback returns has its hidden characters marked.

The one place at which text of a training becomes an element of the page on the server's side. Runs on
callback threads. Data for the scripts (figures, rows, names) passes as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

from dash import Dash, Output, html
from dash.development.base_component import Component

from .views.visible_text import LINES, visible_text

_SHOWN: Final = frozenset({"children", "title", "label", "placeholder", "alt", "error", "aria-label"})
"""Properties whose text is read by people."""


def return_visible_text(app: Dash) -> None:
    """Have all callbacks that are registered from now on return visible text."""
    register = app.callback

    def callback(*arguments: Any, **options: Any) -> Callable[[Any], Any]:
        shown = [output.component_property in _SHOWN for output in arguments if isinstance(output, Output)]
        add = register(*arguments, **options)
        return lambda function: add(_visible_outcome(function, shown))

    app.callback = callback


def _visible_outcome(function: Any, shown: Sequence[bool]) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        values = function(*arguments)
        if len(shown) == 1:
            return visible(values) if shown[0] else values
        return [visible(value) if is_shown else value for value, is_shown in zip(values, shown, strict=True)]

    return call


def visible(value: Any, *, keep: str = "") -> Any:
    """Return text, a component or a list of them with every text visible; components are changed in place.

    Args:
        value: what a callback returns for a property; anything else is left as it is.
        keep: characters that stay, see `visible_text`.
    """
    if isinstance(value, str):
        return visible_text(value, keep=keep)
    if isinstance(value, list | tuple):
        return [visible(each, keep=keep) for each in value]
    if isinstance(value, Component):
        keep = LINES if isinstance(value, html.Pre) else keep
        for name, held in value.to_plotly_json()["props"].items():
            if name in _SHOWN:
                setattr(value, name, visible(held, keep="\n" if name == "title" else keep))
    return value
