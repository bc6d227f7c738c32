"""Hidden characters as marks, in text, HTML and Plotly."""

from __future__ import annotations

import pytest

from dashboard.page.views.visible_text import LINES, html_text, plotly_text, visible_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("blocks.1.norm", "blocks.1.norm"),
        ("Gewöhnliche Namen, 中文, עברית, 🎲", "Gewöhnliche Namen, 中文, עברית, 🎲"),
        ("a\u202eb", "a[U+202E]b"),
        ("\u2066a\u2069\u200b", "[U+2066]a[U+2069][U+200B]"),
        ("a\tb\nc\r", "a[U+0009]b[U+000A]c[U+000D]"),
        ("\x00\x1b[31m\x7f", "[U+0000][U+001B][31m[U+007F]"),
        ("\u2028\ufeff\ud800\U000e0041", "[U+2028][U+FEFF][U+D800][U+E0041]"),
        ("", ""),
    ],
)
def test_visible_text_marks_what_cannot_be_seen(text: str, shown: str) -> None:
    assert visible_text(text) == shown
    assert visible_text(shown) == shown


def test_visible_text_of_lines_keeps_lines_and_tabs_alone() -> None:
    assert visible_text("a\n\tb\u202e\r", keep=LINES) == "a\n\tb[U+202E][U+000D]"


def test_html_and_plotly_read_no_markup_and_no_placeholder() -> None:
    assert html_text('<b title="\u202e">') == "&lt;b title=&quot;[U+202E]&quot;&gt;"
    assert plotly_text("%{y}<\u200b>") == "&#37;{y}&lt;[U+200B]&gt;"
