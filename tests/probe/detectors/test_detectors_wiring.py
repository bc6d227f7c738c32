"""Parameters that no gradient reaches: the counting, the patience and the grouping. Plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from sampled_runs import OPTIONS, plain

from probe.detectors.base import Finding
from probe.detectors.cause_advice import (
    CUT,
    MEANT,
    NO_GRADIENT,
    NOT_CALLED,
    NOT_IN_OPTIMIZER,
    STEP,
    ZERO_GRAD_ORDER,
)
from probe.detectors.layers import topmost_modules
from probe.detectors.wiring import Part, Reason, WiringDetector

NAMES = ("encoder.0.weight", "encoder.0.bias", "encoder.2.weight", "head.weight", "head.scale")
ENCODER = np.array([True, True, True, False, False])


def part(reason: Reason, **values: object) -> Part:
    given = {"name": "encoder", "parameters": NAMES[:3]} | values
    return Part(reason=reason, **given)  # type: ignore[arg-type]


def judged(missing: Iterable[np.ndarray], parts: Sequence[Part]) -> list[tuple[int, Finding]]:
    """What is found at each step; the look at the calls is made after the third."""
    detector = WiringDetector(OPTIONS)
    detector.begin(NAMES)
    found = []
    for step, absent in enumerate(missing):
        detector.note_gradients(step, absent)
        if step == 3:
            detector.note_parts(parts)
        found += [(step, finding) for finding in detector.observe(plain(step))]
    return found


@pytest.mark.parametrize(
    ("reason", "first", "text", "advice"),
    [
        ("cut_off", 9, "goes into `head` without its graph: a detach() on the way", CUT),
        ("no_grad", 9, "with gradients switched off", CUT),
        ("no_graph", 9, "what it returns carries no graph", CUT),
        ("unused", 99, "does not reach the loss", NO_GRADIENT),
        ("never_called", 99, "it was not called in a forward with gradients", NOT_CALLED),
        ("unknown", 99, "the loss does not depend on it", NO_GRADIENT),
    ],
)
def test_wiring_names_the_module_once_its_patience_is_over(
    reason: Reason, first: int, text: str, advice: tuple[str, ...]
) -> None:
    found = judged([ENCODER] * 120, [part(reason, where="train.py:7 in forward", goes_into="head")])
    step, finding = found[0]
    assert (step, finding.kind, finding.severity, finding.subject) == (
        first,
        "parameter_not_updated",
        "warning",
        "encoder",
    )
    assert text in finding.message
    assert finding.advice == advice + MEANT
    assert finding.affected == NAMES[:3]
    assert (finding.value, finding.baseline) == (3.0, {"steps": first + 1.0})
    assert len(found) == 120 - first


def test_wiring_ends_when_a_gradient_arrives() -> None:
    found = judged([ENCODER] * 30 + [np.zeros(5, dtype=np.bool_)] * 30, [part("cut_off")])
    assert [step for step, _ in found] == list(range(9, 30))


def test_wiring_waits_long_where_gradients_come_and_go() -> None:
    """Two experts take turns, so that a third that was never chosen may be waiting for its turn, too."""
    first, second = np.array([True] * 4 + [False]), np.array([True] * 3 + [False, True])
    found = judged([(first, second)[step % 2] for step in range(1100)], [part("never_called")])
    assert found[0][0] == 999


def test_wiring_of_a_library_is_information() -> None:
    found = judged([ENCODER] * 120, [part("unused", is_library=True)])
    assert found[0][1].severity == "info"


def test_wiring_names_the_users_own_part_first() -> None:
    parts = [part("unused", is_library=True), part("never_called", name="head", parameters=NAMES[3:4])]
    missing = np.array([True] * 4 + [False])
    finding = judged([missing] * 120, parts)[0][1]
    assert (finding.subject, finding.severity) == ("head", "warning")
    assert finding.message.endswith("; the same of `encoder`")


def test_wiring_tells_of_each_thing_once_between_measurements() -> None:
    detector = WiringDetector(OPTIONS)
    detector.begin(NAMES)
    detector.note_parts([part("cut_off")])
    news = []
    for step in range(30):
        detector.note_gradients(step, ENCODER)
        news.append(detector.has_news)
        if detector.has_news:
            detector.observe(plain(step))
    assert [step for step, is_new in enumerate(news) if is_new] == [9]


def test_wiring_remembers_what_was_reached_in_earlier_layouts() -> None:
    detector = WiringDetector(OPTIONS)
    detector.begin(NAMES)
    detector.note_gradients(0, ENCODER)
    detector.begin(NAMES[3:])
    detector.note_gradients(1, np.array([False, True]))
    detector.begin(("new", *reversed(NAMES)))
    reached = {("new", *reversed(NAMES))[row] for row in detector.unreached}
    assert reached == {"new", *(name for name, is_missing in zip(NAMES, ENCODER, strict=True) if is_missing)}


def test_wiring_of_parameters_in_no_optimizer_names_their_module() -> None:
    detector = WiringDetector(OPTIONS)
    detector.begin(NAMES)
    detector.note_orphans(NAMES[:3], are_backbone=False)
    assert detector.has_news
    (finding,) = detector.observe(plain(20))
    assert (finding.severity, finding.subject) == ("warning", "encoder")
    assert finding.advice == NOT_IN_OPTIMIZER + MEANT
    detector.note_orphans(NAMES[:3], are_backbone=True)
    assert [finding.severity for finding in detector.observe(plain(20))] == ["info"]
    detector.note_orphans((), are_backbone=False)
    assert detector.observe(plain(21)) == []


def test_wiring_of_the_whole_model() -> None:
    detector = WiringDetector(OPTIONS)
    detector.begin(NAMES)
    detector.note_idle(18, 19)
    detector.note_empty(18, 9)
    assert detector.observe(plain(18)) == []
    detector.note_idle(19, 20)
    (finding,) = detector.observe(plain(19))
    assert "step() is never called" in finding.message and finding.advice == STEP
    detector.note_empty(20, 10)
    finding = detector.observe(plain(20))[0]
    assert "cleared between backward() and step()" in finding.message and finding.advice == ZERO_GRAD_ORDER
    detector.note_empty(21, 0)
    detector.note_idle(21, 0)
    assert detector.observe(plain(21)) == []


@pytest.mark.parametrize(
    ("chosen", "groups"),
    [
        ([1, 1, 1, 0, 0], {"encoder": NAMES[:3]}),
        ([1, 1, 0, 0, 0], {"encoder.0": NAMES[:2]}),
        ([0, 1, 1, 0, 0], {"encoder.0.bias": NAMES[1:2], "encoder.2": NAMES[2:3]}),
        ([0, 0, 0, 0, 1], {"head.scale": NAMES[4:]}),
        ([1, 1, 1, 1, 1], {"": NAMES}),
        ([0, 0, 0, 0, 0], {}),
    ],
)
def test_parameters_are_grouped_under_the_topmost_module_without_others(
    chosen: list[int], groups: dict[str, tuple[str, ...]]
) -> None:
    assert topmost_modules(NAMES, np.array(chosen, dtype=np.bool_)) == groups
