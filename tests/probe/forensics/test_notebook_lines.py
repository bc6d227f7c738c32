"""The line of a loss in a notebook, where each statement of a cell is compiled by itself."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from journals import read_journal
from torch import nn

import probe
from dashboard.page.views.source_lines import current_line
from probe.errors import ReplayError
from probe.forensics.loss.code_source import source_of
from probe.wire import Event

CELL = "/tmp/ipykernel_1/1234567890.py"
CELLS = {
    "a loop and a value": """\
for x, parts in batches:
    out = model(x)
    loss = out.mean() / parts  # FAULT
    opt.zero_grad()
    loss.backward()
    opt.step()
loss
""",
    "the second of two equal loops": """\
scale = 1.0
for x, parts in batches[:2]:
    loss = model(x).mean() / parts
    opt.zero_grad(); loss.backward(); opt.step()
for x, parts in batches[2:]:
    loss = model(x).mean() / parts  # FAULT
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "a function and its call": """\
def train(batches):
    for x, parts in batches:
        loss = model(x).mean() / parts  # FAULT
        opt.zero_grad()
        loss.backward()
        opt.step()

train(batches)
""",
}


@pytest.fixture
def cells() -> Iterator[None]:
    yield
    linecache.cache.pop(CELL, None)


def statements_of(source: str) -> list[Any]:
    """Compile a cell as IPython does: one statement after the other, each a module of its own."""
    linecache.cache[CELL] = (len(source), None, source.splitlines(keepends=True), CELL)
    return [compile(ast.Module([node], []), CELL, "exec") for node in ast.parse(source).body]


def event_of(source: str, folder: Path) -> Event:
    """The first event of a cell whose fifth batch divides by 0."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [(torch.randn(6, 4), torch.tensor(float(step != 4))) for step in range(5)]
    names = {"model": model, "opt": opt, "batches": batches, "__name__": "__main__"}
    with probe.watch(model, opt, spool=folder, connect="") as run:
        for statement in statements_of(source):
            exec(statement, names)  # noqa: S102 - as IPython does
        assert run._guard.failures == 0
    (journal,) = folder.iterdir()
    return next(event for event in read_journal(journal).events if event.kind == "nonfinite_loss")


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.usefixtures("cells")
def test_line_of_the_loss_in_a_cell_is_found(cell: str, tmp_path: Path) -> None:
    event = event_of(CELLS[cell], tmp_path)

    (fault,) = [number for number, line in enumerate(CELLS[cell].splitlines(), 1) if "# FAULT" in line]
    assert event.origin is not None, event.message
    assert (event.step, event.origin.op, event.noticed_at) == (4, "div", None), event.message
    assert event.stacks.forward[-1].line == fault


@pytest.mark.usefixtures("cells")
def test_line_in_a_cell_has_the_cells_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[3]") if file == CELL else None)
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=compiler, user_ns={}))
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    event = event_of(CELLS["a loop and a value"], tmp_path)
    frame = event.stacks.forward[-1]
    assert ", In[3]:3 (div)" in event.message.splitlines()[0]
    assert (frame.file, current_line(frame)) == ("In[3]", "loss = out.mean() / parts  # FAULT")
    assert event.stacks.training_loop[-2].file == __file__


@pytest.mark.usefixtures("cells")
def test_source_of_a_cell_that_was_written_anew_is_refused() -> None:
    (loop,) = statements_of("for x in batches:\n    print(x)\n")
    statements_of("for x in batches:\n    print(x, x)\n")

    with pytest.raises(ReplayError, match="no longer what runs"):
        source_of(loop)
