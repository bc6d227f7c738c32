"""Text of a training as it may be shown: what cannot be seen, or turns the order of the rest, is a mark.

A name with U+202E reads backwards, one with a zero-width space looks like another name, and a terminal obeys
an escape sequence. What is kept, sent and exported as data stays as it is. Pure and light: used on stderr, by
the commands and by the page, whose `ns.visible` in `assets/ns_00_core.js` does the same.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls, formats (bidi, zero-width), lone surrogates, separators of lines and paragraphs."""
LINES: Final = "\n\t"
"""What a preformatted text keeps."""


def visible_text(text: str, *, keep: str = "") -> str:
    """Return a text in which each hidden character is its number in brackets: U+202E is ``[U+202E]``.

    Args:
        text: any text.
        keep: characters that stay as they are, `LINES` for preformatted text.
    """
    if text.isascii() and text.isprintable():
        return text
    marks = {ord(sign): f"[U+{ord(sign):04X}]" for sign in set(text) if sign not in keep and _is_hidden(sign)}
    return text.translate(marks) if marks else text


def _is_hidden(sign: str) -> bool:
    return unicodedata.category(sign) in _CATEGORIES
