"""The event panel: what it says, and that run text stays text."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from dash import dcc, html
from dash.development.base_component import Component
from hypothesis import given
from hypothesis import strategies as st
from sample_events import library_frame, nan_event, own_frame, spike_event

from dashboard.export.event_html import event_html
from dashboard.page.views import event_facts as facts
from dashboard.page.views.event_panel import event_panel, panel_state
from dashboard.page.views.evidence import Fact, evidence_facts
from dashboard.page.views.quantities import number_text
from dashboard.page.views.source_lines import is_library, source_lines
from dashboard.store.protocol import RunSummary
from probe.detectors.base import Finding
from probe.detectors.why import Move, chain
from probe.forensics.incident_texts import describe
from probe.wire import Evidence, Origin, RunStart, StackFrame, Stacks
from probe.wire.message_lines import BUNDLE


def walk(node: Any) -> Iterator[Any]:
    if isinstance(node, Component):
        yield node
        yield from walk(getattr(node, "children", None))
    elif isinstance(node, list | tuple):
        for child in node:
            yield from walk(child)
    elif node is not None:
        yield node


def text_of(node: Any) -> str:
    return "".join(str(part) for part in walk(node) if not isinstance(part, Component))


def of_type(node: Any, kind: type[Component]) -> list[Any]:
    return [part for part in walk(node) if isinstance(part, kind)]


def with_class(node: Any, name: str) -> list[Any]:
    return [part for part in walk(node) if name in str(getattr(part, "className", "")).split()]


def test_event_panel_without_event_says_how_to_choose_one() -> None:
    assert "press n" in text_of(event_panel(None))


def test_event_panel_heading_is_the_first_line_of_the_message() -> None:
    (heading,) = of_type(event_panel(nan_event()), html.H2)
    assert text_of(heading) == "NaN first at step 400 in blocks.3, model.py:26, forward"
    assert text_of(of_type(heading, html.Code)) == "blocks.3"


@pytest.mark.parametrize(("severity", "icon"), [("critical", "◆"), ("warning", "▲"), ("info", "●")])
def test_event_panel_severity_is_icon_and_text(severity: str, icon: str) -> None:
    (badge,) = with_class(event_panel(nan_event(severity=severity)), "severity-badge")
    assert text_of(badge) == f"{icon} {severity}"


def test_event_panel_place_names_op_phase_module_and_line() -> None:
    panel = event_panel(nan_event())
    pairs = dict(
        zip(map(text_of, of_type(panel, html.Dt)), map(text_of, of_type(panel, html.Dd)), strict=True)
    )
    assert pairs["Operation"] == "aten.sqrt"
    assert pairs["Phase"] == "forward"
    assert pairs["Module"] == "blocks.3"
    line = "▶ project/model.py:26 in forwardy = torch.sqrt(x * scale)  # negative"
    assert pairs["Line"] == line + "Copy path:line"


def test_event_panel_null_origin_gives_the_reason_once() -> None:
    """The reason as the probe writes it, by its own function."""
    found = Finding(
        kind="nonfinite_loss",
        severity="critical",
        subject="loss",
        message="NaN in the loss at step 4",
        value=float("nan"),
        threshold=None,
    )
    message = describe(found, 4, None, "the batch was changed in place")
    event = nan_event(origin=None, message=message, stacks=Stacks())
    reason = "not determined: the batch was changed in place."
    assert facts.place(event)[0] == Fact(label="Origin", value=reason)
    assert text_of(event_panel(event)).count("the batch was changed in place") == 1


def test_event_panel_of_a_bad_batch_does_not_say_it_twice() -> None:
    event = nan_event(kind="nonfinite_input", origin=None, message="Input x holds 1 NaN", subject="x")
    assert "Origin" not in [fact.label for fact in facts.place(event)]
    assert text_of(event_panel(event)).count("Input x holds 1 NaN") == 1


def test_event_panel_event_that_needs_no_origin_says_nothing_of_one() -> None:
    assert [fact.label for fact in facts.place(spike_event())] == ["Subject"]


def test_event_panel_root_module_is_named_in_words() -> None:
    event = nan_event(origin=Origin(phase="loss", op="aten.log", module=None))
    assert "outside the model" in text_of(event_panel(event))


def test_event_panel_own_frames_are_open_and_library_frames_folded() -> None:
    frames = with_class(event_panel(nan_event()), "event-frame")
    assert [bool(frame.open) for frame in frames] == [True, False, True]
    assert [is_library(library_frame()), is_library(own_frame())] == [True, False]


def test_event_panel_marks_exactly_the_line_that_ran() -> None:
    (frame,) = with_class(event_panel(nan_event(stacks=Stacks(forward=[own_frame()]))), "event-frame")
    (current,) = with_class(frame, "current")
    assert text_of(current).startswith("▶   26")
    assert "torch.sqrt(x * scale)  # negative" in text_of(current)


def test_event_panel_frame_without_source_says_so() -> None:
    panel = event_panel(nan_event(stacks=Stacks(forward=[own_frame(code="")])))
    assert "source of this frame could not be read" in text_of(panel)


def test_event_panel_affected_parameters_are_folded_and_complete() -> None:
    (details,) = with_class(event_panel(nan_event()), "event-affected")
    assert not getattr(details, "open", False)
    assert text_of(of_type(details, html.Pre)) == "blocks.3.weight\nblocks.4.weight"


def test_event_panel_empty_sections_are_left_out() -> None:
    panel = event_panel(spike_event(evidence=Evidence(), advice=[], stacks=Stacks()))
    assert [text_of(title) for title in of_type(panel, html.H3)] == ["Where"]


def test_event_panel_time_is_relative_with_the_absolute_on_hover() -> None:
    start = RunStart(run="run-a", rank=0, incarnation=1)
    run = RunSummary(run="run-a", name="x", start=start, started=1_700_000_000.0, ranks=(), event_counts={})
    (time,) = of_type(event_panel(nan_event(), run=run), html.Time)
    assert (text_of(time), time.title) == ("1 min 12 s into the run", "2023-11-14 22:14:32 UTC")


def test_event_panel_run_text_is_never_markup() -> None:
    hostile = "<script>alert(1)</script> **bold** [x](javascript:alert(1))"
    panel = event_panel(
        nan_event(message=hostile, subject=hostile, advice=[hostile], propagated_to=[hostile])
    )
    assert hostile in text_of(panel)
    assert not of_type(panel, dcc.Markdown)
    assert not any(
        "dangerously" in name.lower() for part in of_type(panel, Component) for name in part._prop_names
    )


def test_evidence_facts_compare_the_value_with_the_runs_own_median() -> None:
    rows = {row.label: row.value for row in evidence_facts(spike_event())}
    assert rows == {
        "at this event": "9.5",
        "threshold": "3",
        "median of this run": "2",
        "ratio to the median": "× 4.75",
    }


def test_evidence_facts_nan_has_no_ratio() -> None:
    rows = {row.label: row.value for row in evidence_facts(nan_event())}
    assert rows["at this event"] == "NaN"
    assert "ratio to the median" not in rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.23456, "1.235"),
        (0.000123456, "1.235e-04"),
        (12345.0, "12,345"),
        (1.5e9, "1.500e+09"),
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
    ],
)
def test_number_text_has_sensible_digits(value: float, text: str) -> None:
    assert number_text(value) == text


def test_memory_evidence_has_binary_units() -> None:
    event = spike_event(kind="memory_leak", evidence=Evidence(value=1.5 * 2**30))
    assert evidence_facts(event)[0].value == "1.5 GiB"


@given(st.text(max_size=300), st.integers(0, 10_000))
def test_source_lines_keep_every_character_of_the_source(code: str, first: int) -> None:
    lines = source_lines(own_frame(code=code, code_first_line=first, line=first))
    rebuilt = "\n".join("".join(token.text for token in line.tokens) for line in lines)
    assert rebuilt == code.rstrip("\n")
    assert [line.number for line in lines] == list(range(first, first + len(lines)))


def test_source_lines_colour_what_python_would() -> None:
    lines = source_lines(own_frame())
    kinds = {token.text: token.kind for line in lines for token in line.tokens if token.kind}
    assert kinds["class"] == kinds["return"] == "keyword"
    assert kinds['"text"'] == "string"
    assert kinds["# negative"] == "comment"
    assert kinds["0.5"] == "number"


def test_event_order_of_one_moment_puts_the_severest_first() -> None:
    together = [spike_event(7, time=1.0, severity=name) for name in ("info", "critical", "warning")]
    assert [event.severity for event in sorted(together, key=facts.event_order)] == [
        "critical",
        "warning",
        "info",
    ]


def test_event_panel_of_a_deep_recursion_stays_small_and_whole() -> None:
    frames = [own_frame(function=f"depth_{number}") for number in range(256)]
    panel = event_panel(nan_event(stacks=Stacks(forward=frames)))
    assert sum(isinstance(part, Component) for part in walk(panel)) < 600
    assert sum(text_of(source).count("torch.sqrt(x * scale)") for source in of_type(panel, html.Pre)) == 256
    assert "224 more frames" in text_of(panel)
    assert all(f"depth_{number}" in text_of(panel) for number in range(256))


def test_what_moved_is_a_list_with_the_earliest_first() -> None:
    """As the probe writes it: made by its own function, of moves that this test knows."""
    moves = [Move("args[0]", 810, 40.0, what="input"), Move("loss", 812, 9.0, what="loss")]
    line = chain(moves)
    assert line is not None
    panel = event_panel(nan_event(message=f"Loss is NaN\n{line}\nReplay: exact."))
    (listed,) = with_class(panel, "event-moves")
    assert [text_of(item) for item in of_type(listed, html.Li)] == [
        "largest element of input args[0] 40x its median at step 810",
        "loss 9x its median at step 812",
    ]
    assert [text_of(line) for line in with_class(panel, "event-message")] == ["Replay: exact."]
    assert "largest element" in event_html(nan_event(message=f"Loss is NaN\n{line}"), started=None)


def test_bundle_is_the_command_that_replays_it() -> None:
    event = nan_event(message=f"Loss is NaN\n{BUNDLE}/spool/my run/bundles/1; rm -rf ~")
    command = "dashboard replay '/spool/my run/bundles/1; rm -rf ~' --entry MODULE:FUNCTION"
    assert command in text_of(event_panel(event))
    assert "--entry MODULE:FUNCTION" in event_html(event, started=None)
    assert "Run the step again" not in text_of(event_panel(nan_event()))


def test_line_of_a_derivative_of_the_scripts_own_comes_before_that_of_its_forward() -> None:
    call = StackFrame(file="/home/me/train.py", line=12, function="Net.forward", code="")
    loop = StackFrame(file="/home/me/train.py", line=30, function="train", code="")
    own = StackFrame(file="/home/me/train.py", line=7, function="Root.backward", code="")
    lines = []
    for op, backward in (("RootBackward", [loop, own]), ("SqrtBackward0", [loop])):
        event = nan_event(
            origin=Origin(phase="backward", op=op, module="root"),
            stacks=Stacks(forward=[call], backward=backward, training_loop=[loop]),
        )
        frame = facts.fault_frame(event)
        assert frame is not None
        lines.append(frame.line)
    assert lines == [7, 12]


def test_stack_unfolds_the_innermost_own_frame_and_folds_the_rest_to_their_lines() -> None:
    """As Python's traceback would: each caller with the line that it was at; libraries as one."""
    caller = own_frame(file="/home/someone/project/train.py", function="main")
    frames = [caller, own_frame(), library_frame(), library_frame()]
    panel = event_panel(nan_event(stacks=Stacks(forward=frames)))
    folds = with_class(panel, "event-frame")
    assert [bool(getattr(fold, "open", False)) for fold in folds] == [False, False, False, True, False]
    assert text_of(of_type(folds[0], html.Summary)[0]) == "2 library frames"
    assert text_of(of_type(folds[4], html.Summary)) == (
        "project/train.py:26 in mainy = torch.sqrt(x * scale)  # negative"
    )


def test_stack_is_copied_as_python_writes_one() -> None:
    frames = [own_frame(file="/home/someone/project/train.py", function="main"), own_frame()]
    panel = event_panel(nan_event(stacks=Stacks(forward=frames)))
    (button,) = with_class(with_class(panel, "event-stack"), "event-copy")
    listed = [
        traceback.FrameSummary(
            frame.file, frame.line, frame.function, line="y = torch.sqrt(x * scale)  # negative"
        )
        for frame in frames
    ]
    python = "Traceback (most recent call last):\n" + "".join(traceback.format_list(listed))
    assert getattr(button, "data-text") == python.rstrip("\n")


def test_report_has_all_that_the_panel_says() -> None:
    event = nan_event(message=f"NaN first at step 400\naten.sqrt made 12 NaN.\n{BUNDLE}/spool/1")
    (text,) = [
        getattr(button, "data-text")
        for button in with_class(event_panel(event), "ns-button")
        if text_of(button) == "Copy as text"
    ]
    for said in (
        "NaN first at step 400\n",
        "critical, non-finite gradient, once",
        "aten.sqrt made 12 NaN.",
        "Operation: aten.sqrt",
        "Spread to 2: blocks.3.weight, blocks.4.weight",
        "median of this run: 1.25",
        "Clamp the input of sqrt.",
        "dashboard replay /spool/1 --entry",
        'File "/home/someone/project/model.py", line 26, in forward',
        "Training loop stack",
    ):
        assert said in text


def test_first_line_without_end_is_cut_as_heading_and_whole_below() -> None:
    message = "x" * 4000
    panel = event_panel(nan_event(message=message, subject="blocks.3"))
    (heading,) = of_type(panel, html.H2)
    assert len(text_of(heading)) <= facts.HEADLINE_LENGTH + 2
    (fold,) = with_class(panel, "event-more")
    assert text_of(of_type(fold, html.Pre)) == message


def test_message_of_many_lines_is_folded_after_a_screen_of_it() -> None:
    lines = [f"line {number}" for number in range(60)]
    panel = event_panel(nan_event(message="\n".join(["Headline", *lines])))
    shown = [text_of(part) for part in with_class(panel, "event-message")]
    (fold,) = with_class(panel, "event-more")
    assert [*shown, *text_of(of_type(fold, html.Pre)).split("\n")] == lines
    assert text_of(of_type(fold, html.Summary)) == f"{60 - len(shown)} more lines"
    assert 3 <= len(shown) <= 10


def test_many_numbers_are_folded_and_none_is_lost() -> None:
    baseline = {f"number_{number}": float(number) for number in range(40)}
    panel = event_panel(spike_event(kind="custom", evidence=Evidence(baseline=baseline)))
    (fold,) = with_class(panel, "event-neighbours")
    assert text_of(of_type(fold, html.Summary)) == "28 more numbers"
    labels = [text_of(cell) for cell in of_type(panel, html.Th) if cell.scope == "row"]
    assert labels == list(baseline)


def test_line_that_the_headline_says_already_is_left_out() -> None:
    event = nan_event(message="KeyError: 'label' at step 64, train.py:25\nKeyError: 'label'", origin=None)
    assert facts.explanation(event) == ()


def test_subject_alone_is_not_listed_as_affected() -> None:
    assert not with_class(event_panel(nan_event(propagated_to=["blocks.3"])), "event-affected")


def test_what_went_into_the_operation_stands_where_it_happened() -> None:
    event = nan_event(
        message="NaN\ninput 0: float32 [2], 0 to 1\noutput 0: float32 [2], 2 NaN\nReplay: exact."
    )
    assert [fact.value for fact in facts.place(event) if fact.label in ("Input 0", "Output 0")] == [
        "float32 [2], 0 to 1",
        "float32 [2], 2 NaN",
    ]
    assert facts.explanation(event) == ("Replay: exact.",)


def test_origin_in_the_batch_is_named_as_such() -> None:
    event = nan_event(origin=Origin(phase="input", op="input", module="", stage="reduced"))
    labels = {fact.label: fact.value for fact in facts.place(event)}
    assert labels["Origin"] == "the batch itself, before any operation"
    assert labels["Gradient"] == "reduced (averaged over ranks)"
    assert "Operation" not in labels


def test_advice_between_backticks_is_code_and_markup_is_not() -> None:
    panel = event_panel(nan_event(advice=["Append `loss.item()`, never <b>`loss`</b>."]))
    (item,) = of_type(with_class(panel, "event-advice"), html.Li)
    assert [text_of(code) for code in of_type(item, html.Code)] == ["loss.item()", "loss"]
    assert text_of(item) == "Append loss.item(), never <b>loss</b>."
    exported = event_html(nan_event(advice=["Append `loss.item()`, never <b>."]), started=None)
    assert "<li>Append <code>loss.item()</code>, never &lt;b&gt;.</li>" in exported


def test_panel_state_is_that_of_the_event() -> None:
    once, again = nan_event(), nan_event(count=2, last_step=401)
    assert panel_state(once) == panel_state(nan_event())
    assert panel_state(once) != panel_state(again)


@pytest.mark.parametrize(
    ("kind", "label"), [("loss_spike", "Noticed at"), ("exception", "Line"), ("memory_leak", "Line")]
)
def test_line_at_which_the_loop_only_stood_is_not_called_the_origin(kind: str, label: str) -> None:
    event = spike_event(kind=kind, stacks=Stacks(training_loop=[own_frame()]))
    assert facts.place(event)[0].label == label


@pytest.mark.parametrize(
    ("kind", "subject", "label"),
    [
        ("replayed", "nonfinite_loss", None),
        ("throttled", "parameter_norms", None),
        ("nonfinite_input", "policy: input", None),
        ("hang", "stuck", "State"),
        ("dead_units", "act1", "Subject"),
    ],
)
def test_place_subject_that_is_a_key_for_the_episode_is_not_shown(
    kind: str, subject: str, label: str | None
) -> None:
    labels = {fact.value: fact.label for fact in facts.place(spike_event(kind=kind, subject=subject))}
    assert labels.get(subject) == label
