"""Stacks: order, filtering, source lines and the wire's limits."""

import linecache
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from probe import wire
from probe.threads.stacks import CONTEXT_LINES, capture_stack, format_frames, raw_stack, stack_from_traceback


def _inner():
    return capture_stack()  # the captured line


def test_capture_stack_ends_in_the_callers_line():
    frame = _inner()[-1]
    assert (frame.file, frame.function) == (__file__, "_inner")
    assert linecache.getline(frame.file, frame.line).strip().endswith("# the captured line")


def test_capture_stack_is_outermost_first():
    functions = [frame.function for frame in _inner()]
    assert functions[-2:] == ["test_capture_stack_is_outermost_first", "_inner"]


def test_capture_stack_shows_the_lines_around():
    frame = _inner()[-1]
    lines = frame.code.split("\n")
    assert "# the captured line" in lines[frame.line - frame.code_first_line]
    assert frame.line - frame.code_first_line == CONTEXT_LINES
    assert len(lines) == 2 * CONTEXT_LINES + 1


def test_capture_stack_keeps_the_innermost_frames_of_a_deep_stack():
    def deep(depth):
        return capture_stack(limit=10) if depth == 0 else deep(depth - 1)

    frames = deep(300)
    assert len(frames) == 10
    assert {frame.function.rsplit(".", 1)[-1] for frame in frames} == {"deep"}


def test_capture_stack_in_an_optimizer_hook_ends_in_the_training_loop():
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    optimizer = torch.optim.SGD([parameter])
    seen = []
    handle = optimizer.register_step_pre_hook(lambda *_: seen.append(_from_torch()))
    optimizer.step()  # the training loop's line
    handle.remove()
    line = linecache.getline(seen[0].file, seen[0].line)
    assert line.strip().endswith("# the training loop's line")


def _from_torch():
    frames = raw_stack(sys._getframe(), limit=100)
    from probe.threads.stacks import inner_torch_removed

    return format_frames(inner_torch_removed(frames[:-2]))[-1]


def test_capture_stack_leaves_out_the_call_plumbing_of_modules():
    seen = []

    class Layer(nn.Module):
        def forward(self, x):
            seen.extend(capture_stack())
            return x

    nn.Sequential(Layer())(torch.zeros(1))
    assert not {"Module._call_impl", "Module._wrapped_call_impl"} & {frame.function for frame in seen}
    assert [frame.function.rsplit(".", 2)[-2:] for frame in seen[-2:]] == [
        ["Sequential", "forward"],
        ["Layer", "forward"],
    ]


def test_stack_from_traceback_ends_where_it_was_raised():
    try:
        int("no number")
    except ValueError as error:
        frames = stack_from_traceback(error.__traceback__)
    assert frames[-1].function == "test_stack_from_traceback_ends_where_it_was_raised"
    assert 'int("no number")' in frames[-1].code


def test_stack_from_no_traceback_is_empty():
    assert stack_from_traceback(None) == []


def _run_as(file, source="frames = capture()"):
    scope = {"capture": capture_stack}
    exec(compile(source, file, "exec"), scope)  # noqa: S102 - the test's own text
    return scope["frames"][-1]


@pytest.mark.parametrize("file", ["<stdin>", "<string>", "/no/such/file.py"])
def test_frame_without_source_has_empty_code(file):
    frame = _run_as(file)
    assert (frame.file, frame.line, frame.code, frame.code_first_line) == (file, 1, "", 0)


def test_frame_of_a_minified_line_is_cut_to_the_wires_limit(tmp_path: Path):
    file = tmp_path / "long.py"
    file.write_text("frames = capture()  #" + "x" * 100_000)
    frame = _run_as(str(file), file.read_text())
    assert len(frame.code) == 65536


def test_frame_with_an_odd_file_name_can_be_encoded():
    frame = _run_as("/tmp/\udcff.py")
    event = wire.Event(
        id="0" * 16,
        run="r",
        rank=0,
        incarnation=0,
        step=0,
        time=0.0,
        kind="custom",
        severity="info",
        message="",
        stacks=wire.Stacks(training_loop=[frame]),
    )
    assert wire.decode_record(wire.encode(event)) == event
