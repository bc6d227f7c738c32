"""Causes of PyTorch's commonest exceptions, on a bank of scripts that was written before they were tried."""

import contextlib
import io
import json
import re
import runpy
import warnings
from pathlib import Path

import pytest
import torch

from probe.guard import Guard
from probe.incidents.causes import Cause, find_cause
from probe.incidents.failure_texts import describe_failure

BANK = Path(__file__).parents[2] / "faults" / "exceptions"
KEY = json.loads((BANK / "key.json").read_text())
LEAST = 0.9
"""Share of the bank in which the cause has to be right."""


def raised_by(path: Path) -> Exception:
    torch.manual_seed(0)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with pytest.raises(Exception) as caught:
            runpy.run_path(str(path), run_name="__main__")
    return caught.value


def is_right(cause: Cause | None, must: list[str]) -> bool:
    return cause is not None and all(re.search(each, cause.sentence, re.I) for each in must)


def test_cause_is_right_in_nine_of_ten_scripts() -> None:
    wrong = []
    for entry in KEY:
        error = raised_by(BANK / entry["file"])
        cause = find_cause(error, error.__traceback__, step=1)
        if not is_right(cause, entry["must"]):
            wrong.append(f"{entry['file']}: {cause and cause.sentence}")
    assert len(KEY) >= 90
    assert len(wrong) <= (1 - LEAST) * len(KEY), "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        "[torch.FloatTensor [3, 1]], which is output 0 of X, is at version 2; expected version 1 instead",
        "Trying to backward through the graph a second time",
        "element 0 of tensors does not require grad and does not have a grad_fn",
        "Target 12 is out of bounds.",
        "index out of range in self",
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
        "'NoneType' object has no attribute 'data'",
        "no text of torch's at all",
    ],
)
def test_without_evidence_nothing_is_said(text: str) -> None:
    """Torch's own text, raised by a script that shows none of its causes."""
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        assert find_cause(error, error.__traceback__, step=3) is None


def test_an_accumulated_value_without_a_graph_is_not_blamed() -> None:
    """`total` is carried over, too, but holds no graph: the state does."""
    source = """
import torch
cell = torch.nn.GRUCell(3, 3)
hidden, total = torch.zeros(2, 3), torch.zeros(())
for step in range(3):
    hidden = cell(torch.randn(2, 3), hidden)
    loss = hidden.sum()
    total = total + loss.detach()
    loss.backward()
"""
    with pytest.raises(RuntimeError) as caught:
        run_source(source, "carried.py")
    cause = find_cause(caught.value, caught.value.__traceback__, step=1)
    assert cause is not None and cause.sentence.startswith("`hidden`, which comes from step 0 (line 6)")
    assert "`hidden = hidden.detach()`" in cause.advice[0] and "total" not in cause.sentence


def test_a_frozen_model_is_not_said_to_be_cut_off() -> None:
    source = """
import torch
net = torch.nn.Linear(3, 1).requires_grad_(False)
loss = net(torch.randn(2, 3)).mean()
loss.backward()
"""
    with pytest.raises(RuntimeError) as caught:
        run_source(source, "frozen.py")
    cause = find_cause(caught.value, caught.value.__traceback__, step=0)
    assert cause is not None and "requires gradients" in cause.sentence and "cut off" not in cause.sentence


def test_event_begins_with_the_cause_and_keeps_torchs_text() -> None:
    source = "import torch\nmodel = torch.nn.Sequential(torch.nn.Linear(4, 2))\nmodel(torch.ones(3, 5))\n"
    with pytest.raises(RuntimeError) as caught:
        run_source(source, "event.py")
    error = caught.value
    fields = describe_failure(
        error, error.__traceback__, step=7, guard=Guard(), model=None, optimizers=(), samples=None
    )
    first, *rest = fields["message"].splitlines()
    assert first == (
        "`model.0` takes 4 features, and its input has 5 (its shape is (3, 5)) (RuntimeError "
        "at step 7, event.py:3)"
    )
    assert any("mat1 and mat2 shapes cannot be multiplied" in line for line in rest)
    assert "the stack shows where it was raised" not in " ".join(fields["advice"])


def run_source(source: str, name: str) -> None:
    import linecache

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), {"__name__": "script", "__file__": name})  # noqa: S102
