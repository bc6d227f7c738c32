"""The first line of an event: what was seen, as what it began, and where."""

import dataclasses
import math
import threading

import pytest

from probe.detectors.base import Finding
from probe.forensics.incident_texts import describe
from probe.forensics.nonfinite_kinds import EITHER_KIND
from probe.forensics.replay import Replay
from probe.threads.user_lines import at_line
from probe.wire import Origin, StackFrame, is_in_derivative

LIBRARY = StackFrame(file="/v/site-packages/torch/x.py", line=1, function="f", code="")
SCRIPT = StackFrame(file="/home/me/train.py", line=26, function="forward", code="")


def finding(value: float) -> Finding:
    return Finding(
        kind="nonfinite_loss",
        severity="critical",
        subject="loss",
        message="Loss.",
        value=value,
        threshold=None,
    )


def replay(value_kind: str, module: str | None = "norm") -> Replay:
    origin = Origin(phase="forward", op="sqrt", module=module)
    return Replay(
        fidelity="exact",
        origin=origin,
        value_kind=value_kind,
        forward=[SCRIPT, LIBRARY],
        backward=[],
        propagated_to=[],
        duration_s=0.0,
    )


@pytest.mark.parametrize(
    ("value", "kind", "module", "expected"),
    [
        (math.nan, "NaN", "norm", "NaN first at step 4 in `norm`, train.py:26, forward (sqrt)"),
        (math.inf, "Inf", "", "Inf first at step 4 in the root module, train.py:26, forward (sqrt)"),
        (math.nan, "Inf", None, "NaN at step 4 began as Inf outside the model, train.py:26, forward (sqrt)"),
        # What is not known is not said.
        (math.nan, EITHER_KIND, "norm", "NaN first at step 4 in `norm`, train.py:26, forward (sqrt)"),
    ],
)
def test_first_line_says_what_where_and_as_what_it_began(
    value: float, kind: str, module: str | None, expected: str
) -> None:
    assert describe(finding(value), 4, replay(kind, module), None).splitlines()[0] == expected


@pytest.mark.parametrize(("module", "whose"), [("", "the root module"), ("encoder", "`encoder`")])
def test_first_line_of_a_bad_input_names_no_operation(module: str, whose: str) -> None:
    found = dataclasses.replace(
        replay("NaN"), origin=Origin(phase="input", op="input", module=module), forward=[SCRIPT]
    )

    line = describe(finding(math.nan), 4, found, None).splitlines()[0]
    assert line == f"NaN first at step 4 in the input of {whose}, train.py:26"


def test_bad_value_that_an_op_only_read_is_not_said_to_begin_there() -> None:
    read = dataclasses.replace(replay("NaN"), entered="goal was already non-finite")
    first = describe(finding(math.nan), 4, read, None).splitlines()[0]
    assert (
        first == "NaN came in at step 4 in `norm`, train.py:26, forward (sqrt): goal was already non-finite"
    )


def test_without_an_origin_the_reason_is_given() -> None:
    text = describe(finding(math.nan), 4, None, "replay is switched off")
    assert text == "Loss.\nOrigin not determined: replay is switched off."


def test_line_of_the_standard_library_is_not_the_users() -> None:
    library = StackFrame(file=threading.__file__, line=327, function="wait", code="")
    assert at_line([SCRIPT, library, LIBRARY]) == ", train.py:26"


@pytest.mark.parametrize(
    ("phase", "op", "function", "is_own"),
    [
        ("backward", "RootBackward", "train.<locals>.Root.backward", True),
        ("loss", "RootBackward", "Root.backward", True),
        ("backward", "AddmmBackward0 (hook: mul)", "spoil", True),
        ("backward", "RootBackward", "train", False),
        ("backward", "SqrtBackward0", "Root.backward", False),
        ("backward", "CopySlices (sqrt_)", "train", False),
        ("forward", "div", "Root.backward", False),
    ],
)
def test_line_of_a_derivative_of_the_scripts_own_comes_first(phase, op, function, is_own):
    own = StackFrame(file="/home/me/train.py", line=40, function=function, code="")
    origin = Origin(phase=phase, op=op, module="norm")
    assert is_in_derivative(origin, [SCRIPT, own]) is is_own
    made = dataclasses.replace(replay("NaN"), origin=origin, backward=[SCRIPT, own])
    first = describe(finding(math.nan), 4, made, None).splitlines()[0]
    assert f"train.py:{40 if is_own else 26}, {phase}" in first


def test_no_origin_has_no_derivative():
    assert not is_in_derivative(None, [SCRIPT])
