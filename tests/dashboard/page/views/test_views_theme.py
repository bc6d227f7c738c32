"""Colours: contrast as WCAG 2.2 computes it, equal margins, and the style sheet that repeats the colours."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.page.views.theme import SEVERITY_SYMBOLS, THEMES, Theme, colours, figure_layout
from dashboard.store.protocol import StepRange
from probe.wire import SEVERITIES

STYLE = Path(__file__).parents[4] / "assets" / "ns_page.css"


def luminance(colour: str) -> float:
    """Relative luminance of a hex colour."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["text", "muted", "critical", "warning", "info", "good"])
def test_colours_text_has_contrast(theme: Theme, name: str) -> None:
    palette = colours(theme)
    for ground in (palette.surface, palette.background):
        assert contrast(getattr(palette, name), ground) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_colours_marks_have_contrast(theme: Theme) -> None:
    palette = colours(theme)
    for mark in (*palette.series, palette.nan, palette.inf):
        assert contrast(mark, palette.surface) >= 3


@pytest.mark.parametrize("theme", THEMES)
def test_colours_stand_in_the_style_sheet(theme: Theme) -> None:
    palette, style = colours(theme), STYLE.read_text()
    for name in ("background", "surface", "border", "text", "muted", "critical", "nan", "inf", "unmeasured"):
        assert getattr(palette, name) in style


def test_severity_shapes_differ() -> None:
    assert len({SEVERITY_SYMBOLS[severity] for severity in SEVERITIES}) == len(SEVERITIES)


def test_figure_layout_margins_are_equal_in_every_case() -> None:
    margins = [figure_layout(theme, title=title)["margin"] for theme in THEMES for title in ("", "Loss")]
    assert all(margin == margins[0] for margin in margins)


def test_figure_layout_few_steps_get_one_tick_each() -> None:
    axis = figure_layout("dark", steps=StepRange(first=3, end=8))["xaxis"]
    assert (axis["range"], axis["dtick"]) == ([2.5, 7.5], 1)
