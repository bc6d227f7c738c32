"""The line of a loss that went wrong, where several statements stand on the line of backward."""

from __future__ import annotations

import dis
import importlib.util
from pathlib import Path

import pytest
import torch
from journals import read_journal
from torch import nn

import probe
from probe.errors import ReplayError
from probe.forensics.loss.code_source import function_called
from probe.forensics.loss.loss_code import LossSpots, cut_loss_code
from probe.threads.stacks import Spot, spot_of
from probe.wire import Event

HEAD = """\
import torch

def ratio(out, parts):
    return (out.mean() / parts)  # FUNCTION

def update(model, opt, x, parts, factor=1.0):
    x, other = x * factor, None
    loss = ratio(model(x), parts)
    del x, parts
    opt.zero_grad(); loss.backward(); opt.step()

def train(model, opt, batches):
"""
LOOPS = {
    "zero_grad before": """\
    for x, parts in batches:
        out = model(x)
        loss = out.mean() / parts  # FAULT
        opt.zero_grad(); loss.backward()
        opt.step()
""",
    "step behind": """\
    for x, parts in batches:
        opt.zero_grad(); out = model(x)
        loss = out.mean() / parts  # FAULT
        loss.backward(); opt.step()
""",
    "all on one line": """\
    for x, parts in batches:
        opt.zero_grad(); out = model(x); loss = out.mean() / parts; loss.backward(); opt.step()  # FAULT
""",
    "a for on one line": """\
    for x, parts in batches: opt.zero_grad(); ratio(model(x), parts).backward(); opt.step()
""",
    "a with on one line": """\
    for x, parts in batches:
        with torch.enable_grad(): opt.zero_grad(); out = model(x); y = out.mean() / parts  # FAULT
        opt.zero_grad(); y.backward(); opt.step()
""",
    "an if on one line": """\
    for x, parts in batches:
        opt.zero_grad()
        out = model(x)
        loss = out.mean() / parts  # FAULT
        if x is not None: opt.zero_grad(); loss.backward()
        opt.step()
""",
    "letters of more bytes before": """\
    for x, parts in batches:
        größe = model(x).mean()
        loss = größe / parts  # FAULT
        note = "ß·µ"; größe = None; loss.backward(); opt.step(); opt.zero_grad()
""",
    "a tuple": """\
    for x, parts in batches:
        loss = model(x).mean() / parts  # FAULT
        opt.zero_grad(), loss.backward(), opt.step()
""",
    "a call over several lines": """\
    for x, parts in batches:
        out = model(x)
        y = out / parts  # FAULT
        opt.zero_grad(); (y.mean()
            .backward(
                retain_graph=False)); opt.step()
""",
    "the loss in the block of backward": """\
    for x, parts in batches:
        out = model(x)
        if parts is not None:
            y = out * 2.0
            with torch.enable_grad():
                loss = y.mean() / parts  # FAULT
                loss.backward()
                y = None
        opt.step(); opt.zero_grad()
""",
    "the loss in the try of backward": """\
    for x, parts in batches:
        opt.zero_grad(); out = model(x)
        try:
            loss = out.mean() / parts; loss.backward()  # FAULT
        except torch.OutOfMemoryError:
            continue
        opt.step()
""",
    "parameters that were deleted": """\
    for x, parts in batches:
        update(model, opt, x, parts)
""",
    "parameters given by name": """\
    for x, parts in batches:
        update(model, opt=opt, parts=parts, x=x)
""",
    "another loss before": """\
    other = torch.zeros(1, requires_grad=True)
    for x, parts in batches:
        out = model(x)
        loss = out.mean() / parts  # FAULT
        opt.zero_grad(); (other * 2).sum().backward(); loss.backward()
        opt.step()
""",
}


def event_of(text: str, folder: Path) -> Event:
    """The first event of a script whose fifth batch divides by 0."""
    script = folder / "shared_line.py"
    script.write_text(HEAD + text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("shared_line", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [(torch.randn(6, 4), torch.tensor(float(step != 4))) for step in range(5)]
    with probe.watch(model, optimizer, spool=folder / "spool", connect="") as run:
        module.train(model, optimizer, batches)
        assert run._guard.failures == 0
    (journal,) = (folder / "spool").iterdir()
    return next(event for event in read_journal(journal).events if event.kind == "nonfinite_loss")


@pytest.mark.parametrize("loop", LOOPS)
def test_line_of_the_loss_is_found_beside_other_statements(loop: str, tmp_path: Path) -> None:
    event = event_of(LOOPS[loop], tmp_path)

    marker = "# FAULT" if "# FAULT" in LOOPS[loop] else "# FUNCTION"
    lines = (HEAD + LOOPS[loop]).splitlines()
    (expected,) = [number for number, line in enumerate(lines, 1) if marker in line]
    assert event.origin is not None, event.message
    assert (event.step, event.origin.phase, event.origin.op) == (4, "loss", "div")
    assert event.stacks.forward[-1].line == expected
    assert f"shared_line.py:{expected}" in event.message.splitlines()[0]


def test_deleted_variable_that_nobody_else_has_is_the_reason(tmp_path: Path) -> None:
    loop = "    for x, parts in batches:\n        loss = model(x).mean() / parts\n        del x, parts\n"
    event = event_of(loop + "        opt.zero_grad(); loss.backward(); opt.step()\n", tmp_path)
    assert "parts was deleted after the loss was made of it" in event.message
    assert event.noticed_at is not None and event.noticed_at.function == "train"


@pytest.mark.parametrize("behind", ["opt.step", "opt.zero_grad"])
def test_name_bound_anew_on_the_line_of_backward_is_not_read_again(behind: str, tmp_path: Path) -> None:
    line = "    loss.backward(); opt.step(); parts = parts + 1; opt.zero_grad()"
    script = tmp_path / "bound_anew.py"
    script.write_text(f"def train(model, opt, x, parts):\n    loss = model(x) / parts\n{line}\n")
    (train,) = function_called("train", script.read_text(), str(script))
    spots = LossSpots(Spot(2, 11), Spot(3, line.index("loss.")), Spot(3, line.index(behind)))

    if behind == "opt.step":
        assert cut_loss_code(train, spots, {}).text.startswith("loss = model(x) / parts")
    else:
        with pytest.raises(ReplayError, match="parts is no longer what the loss was made of"):
            cut_loss_code(train, spots, {})


def test_spot_of_the_second_call_of_a_line_is_its_own() -> None:
    code = compile("if ä: first(); second(\n1)", "<text>", "exec")
    calls = [step.offset for step in dis.get_instructions(code) if step.opname.startswith("CALL")]

    assert [spot_of(code, offset) for offset in calls] == [Spot(1, 7), Spot(1, 16)]
    bare = code.replace(co_linetable=b"\xe8\x00" * 64)
    assert spot_of(bare, calls[0]).column is None
