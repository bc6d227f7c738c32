"""The first line of an event: what was seen, as what it began, and where."""

import math
import threading

import pytest

from probe.detectors.base import Finding
from probe.forensics.origin import EITHER_KIND
from probe.forensics.replay import Replay
from probe.incident_texts import at_line, describe
from probe.wire import Origin, StackFrame

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
        (math.nan, "NaN", "norm", "NaN first at step 4 in norm, train.py:26, forward (sqrt)"),
        (math.inf, "Inf", "", "Inf first at step 4 in the root module, train.py:26, forward (sqrt)"),
        (math.nan, "Inf", None, "NaN at step 4 began as Inf outside any module, train.py:26, forward (sqrt)"),
        # What is not known is not said.
        (math.nan, EITHER_KIND, "norm", "NaN first at step 4 in norm, train.py:26, forward (sqrt)"),
    ],
)
def test_first_line_says_what_where_and_as_what_it_began(
    value: float, kind: str, module: str | None, expected: str
) -> None:
    assert describe(finding(value), 4, replay(kind, module), None).splitlines()[0] == expected


def test_without_an_origin_the_reason_is_given() -> None:
    text = describe(finding(math.nan), 4, None, "replay is switched off")
    assert text == "Loss.\nOrigin not determined: replay is switched off."


def test_line_of_the_standard_library_is_not_the_users() -> None:
    library = StackFrame(file=threading.__file__, line=327, function="wait", code="")
    assert at_line([SCRIPT, library, LIBRARY]) == ", train.py:26"
