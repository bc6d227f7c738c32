"""Boxes of an icicle: where each module lies, and how wide it is."""

from __future__ import annotations

import pytest

from dashboard.page.views.module_icicle import LEAST_WIDTH, Box, ModuleTime, module_boxes


def both(forward_s: float, backward_s: float | None = None) -> ModuleTime:
    return ModuleTime(forward_s=forward_s, backward_s=backward_s)


def laid_out(times: dict[str, ModuleTime]) -> dict[str, Box]:
    boxes, hidden = module_boxes(times)
    assert not hidden
    return {box.name: box for box in boxes}


def test_children_lie_in_their_parent_in_model_order() -> None:
    boxes = laid_out(
        {
            "": both(4.0, 6.0),
            "embed": both(1.0, 1.0),
            "blocks.0": both(2.0, 2.0),
            "blocks.0.mlp": both(0.5, 0.5),
            "blocks.1": both(1.0, 2.0),
        }
    )
    places = {name: (box.depth, box.at, box.width) for name, box in boxes.items()}
    assert places == {
        "": (0, 0.0, 1.0),
        "embed": (1, 0.0, pytest.approx(0.2)),
        "blocks": (1, pytest.approx(0.2), pytest.approx(0.7)),
        "blocks.0": (2, pytest.approx(0.2), pytest.approx(0.4)),
        "blocks.0.mlp": (3, pytest.approx(0.2), pytest.approx(0.1)),
        "blocks.1": (2, pytest.approx(0.6), pytest.approx(0.3)),
    }
    assert list(boxes) == ["", "embed", "blocks", "blocks.0", "blocks.0.mlp", "blocks.1"]
    assert (boxes[""].total_s, boxes[""].self_s) == (10.0, pytest.approx(1.0))
    assert boxes["blocks"].forward_s is None and boxes["blocks"].self_s == 0.0


def test_model_without_a_time_of_its_own_is_as_wide_as_its_modules() -> None:
    boxes = laid_out({"a": both(3.0), "b": both(1.0)})
    assert [(box.at, box.width) for box in boxes.values()] == [(0.0, 1.0), (0.0, 0.75), (0.75, 0.25)]


def test_children_that_took_longer_than_their_parent_share_its_width() -> None:
    boxes = laid_out({"": both(2.0), "shared": both(3.0), "own": both(1.0)})
    assert (boxes["shared"].width, boxes["own"].at, boxes["own"].width) == (0.75, 0.75, 0.25)
    assert boxes[""].self_s == 0.0 and boxes["shared"].total_s == 3.0


def test_times_without_children_are_added_up() -> None:
    boxes = laid_out({"": ModuleTime(self_s=1.0), "a": ModuleTime(self_s=2.0), "a.b": ModuleTime(self_s=1.0)})
    assert [(box.name, box.total_s, box.self_s) for box in boxes.values()] == [
        ("", 4.0, 1.0),
        ("a", 3.0, 2.0),
        ("a.b", 1.0, 1.0),
    ]
    assert [box.width for box in boxes.values()] == [1.0, 0.75, 0.25]


def test_modules_too_narrow_to_be_seen_are_counted() -> None:
    short = LEAST_WIDTH / 3
    boxes, hidden = module_boxes({"": both(1.0), "a": both(short), "a.b": both(short), "c": both(0.5)})
    assert ([box.name for box in boxes], hidden) == (["", "c"], 2)


@pytest.mark.parametrize("times", [{}, {"": both(0.0)}, {"a": both(float("nan"))}])
def test_no_time_is_no_box(times: dict[str, ModuleTime]) -> None:
    assert module_boxes(times) == ([], 0)


def test_very_deep_model_has_a_box_in_each_row() -> None:
    name = ".".join(["x"] * 3000)
    boxes, _ = module_boxes({name: both(1.0)})
    assert [box.depth for box in boxes] == list(range(3001))
