"""Where the source of a training loop shows that the graph is cut between the model and the loss."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probe.forensics.cut_line import find_cut
from probe.threads.stacks import RawFrame, inner_torch_removed, raw_stack


class Noting(nn.Module):
    """Keeps the stack of its newest call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.stack: list[RawFrame] = []

    def forward(self, x: Tensor) -> Tensor:
        stack = raw_stack(sys._getframe(1), limit=32)
        self.stack = inner_torch_removed(stack)
        return self.linear(x)


CUTS = {
    "detach": ("loss = loss_of(net(x).detach().requires_grad_(), y)", "net(x).detach()"),
    "data": ("out = net(x)\nfree = out.data\nloss = loss_of(free.requires_grad_(), y)", "out.data"),
    "item": ("loss = loss_of(net(x), y).item()\nloss = torch.tensor(loss, requires_grad=True)", ".item()"),
    "float": (
        "loss = torch.tensor(float(loss_of(net(x), y)), requires_grad=True)",
        "float(loss_of(net(x), y))",
    ),
    "numpy": (
        "out = net(x)\na = out.cpu().detach().numpy()\nloss = torch.from_numpy(a).requires_grad_().sum()",
        "out.cpu().detach()",
    ),
    "no_grad": (
        "with torch.no_grad():\n    out = net(x)\nloss = loss_of(out, y.requires_grad_())",
        "with torch.no_grad()",
    ),
    "tensor": ("out = net(x)\nloss = torch.tensor(out, requires_grad=True).sum()", "torch.tensor(out"),
    "unpacked": ("out, _ = net(x), 1\nloss = (out.squeeze().detach() * w).sum()", "out.squeeze().detach()"),
    "either way": (
        "out = net(x)\nif y is None:\n    z = out.detach()\nelse:\n    z = out.data\nloss = (z * w).sum()",
        "out.detach()",
    ),
}


def run(tmp_path: Path, body: str, name: str = "loop.py") -> tuple[Noting, str]:
    """Run a loop with this in it; returns the model and the loop's source."""
    source = (
        "import torch\n\n\ndef train(net, x, y, w, loss_of):\n    for _ in range(2):\n"
        + textwrap.indent(body, " " * 8)
        + "\n        loss.backward()\n"
    )
    file = tmp_path / name
    file.write_text(source)
    scope: dict[str, Callable[..., None]] = {}
    exec(compile(source, str(file), "exec"), scope)  # noqa: S102 - the source is above
    net, data = Noting(), torch.randn(3, 4)
    scope["train"](net, data, torch.randn(3, 1), torch.ones(1, requires_grad=True), nn.functional.mse_loss)
    return net, source


@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("name", CUTS)
def test_line_that_cuts_the_graph_is_named(name: str, tmp_path: Path) -> None:
    body, text = CUTS[name]
    net, source = run(tmp_path, body)
    found = find_cut(net.stack)
    assert found is not None
    file, line, shown = found.split(":", 2)
    assert file == "loop.py" and text in shown
    assert text in source.splitlines()[int(line) - 1]


WHOLE = {
    "plain": "loss = loss_of(net(x), y)",
    "target": "target = net(x).detach()\nloss = loss_of(net(x), target)",
    "logged": "loss = loss_of(net(x), y)\nprint(loss.item(), float(loss))",
    "sizes": "out = net(x)\nloss = out.sum() / out.shape[0]",
    "one way": "out = net(x)\nif y is None:\n    out = out.detach()\nloss = loss_of(out, y)",
}


@pytest.mark.parametrize("name", WHOLE)
def test_graph_that_the_source_does_not_show_to_be_cut_has_no_line(name: str, tmp_path: Path) -> None:
    net, _ = run(tmp_path, WHOLE[name])
    assert find_cut(net.stack) is None


def test_cut_in_a_function_that_has_returned_is_found(tmp_path: Path) -> None:
    body = (
        "def compute(net, x):\n    out = net(x)\n    return out.detach()\nloss = (compute(net, x) * w).sum()"
    )
    net, source = run(tmp_path, body)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "return out.detach()" in text)
    assert find_cut(net.stack) == f"loop.py:{line}: out.detach()"


def test_cut_behind_a_function_that_has_returned_is_found(tmp_path: Path) -> None:
    body = (
        "def compute(net, x):\n    return net(x).relu()\nout = compute(net, x)\nloss = (out.data * w).sum()"
    )
    net, source = run(tmp_path, body)
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "out.data" in text)
    assert find_cut(net.stack) == f"loop.py:{line}: out.data"


def test_source_that_is_gone_or_another_gives_no_line(tmp_path: Path) -> None:
    net, _ = run(tmp_path, CUTS["detach"][0], name="gone.py")
    (tmp_path / "gone.py").unlink()
    assert find_cut(net.stack) is None
    net, _ = run(tmp_path, CUTS["detach"][0], name="broken.py")
    (tmp_path / "broken.py").write_text("def train(:\n")
    assert find_cut(net.stack) is None
    assert find_cut([]) is None
