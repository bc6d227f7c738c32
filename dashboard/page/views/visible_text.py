"""Text of a training as HTML and as Plotly's text: hidden characters are marked, see `visible_text`. Pure."""

from __future__ import annotations

import html

from probe.delivery.visible_text import LINES, visible_text

__all__ = ["LINES", "html_text", "plotly_text", "visible_text"]


def html_text(text: str, *, keep: str = "") -> str:
    """Return a visible text for HTML, between tags and in attributes."""
    return html.escape(visible_text(text, keep=keep))


def plotly_text(text: str) -> str:
    """Return a visible text that Plotly shows as it is: neither as markup nor as a placeholder of its own."""
    return html_text(text).replace("%", "&#37;")
