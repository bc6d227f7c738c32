"""docs/best_practices.md and docs/troubleshooting.md: each command and each block runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch
from forked_scripts import ForkedScripts
from torch import nn

from dashboard.arguments import command_parser
from dashboard.cli import main
from dashboard.commands.run import split_command

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("best_practices", "troubleshooting")
SHOWN_ELSEWHERE = {"quickstart": "test_quickstart.py"}
"""Commands that another test runs; here they are only parsed."""
SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(sys.argv[2])):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[tuple[dict[str, str], list[str]]]:
    """(environment, arguments of `dashboard`) of each line of each block of commands."""
    found = []
    for line in "".join(blocks(page, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        at = words.index("dashboard")
        found.append((dict(word.split("=", 1) for word in words[:at]), words[at + 1 :]))
    return found


@pytest.mark.slow
@pytest.mark.capability(68)
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_guide_runs(
    page: str, forked: ForkedScripts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    listed = commands(page)
    assert len(listed) >= 6
    if listed[1][1][0] != "run":
        assert forked.launch(["--quiet", "train.py", "--steps", "5"], tmp_path).wait() == 0
    for environment, arguments in listed:
        options, _ = split_command(arguments)
        assert command_parser().parse_args(options).name == arguments[0]
        if arguments[0] == "run":
            code, _, err = forked.launch(arguments[1:], tmp_path, environment).finish()
            assert (code, "Traceback" in err) == (0, False), (arguments, err)
        elif arguments[0] not in SHOWN_ELSEWHERE:
            assert main(arguments) == (2 if arguments[0] == "url" else 0), arguments
    assert (page == "troubleshooting") or (tmp_path / "train.html").exists()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_guide_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(4, 3)
    scope: dict[str, object] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": nn.CrossEntropyLoss(),
        "inputs": torch.randn(8, 4),
        "targets": torch.randint(3, (8,)),
    }
    for block in blocks(page, "python"):
        exec(compile(block, f"docs/{page}.md", "exec"), scope)  # noqa: S102
    assert (page == "troubleshooting") or (tmp_path / "first.json").exists()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_the_guide_leads_to_a_page_and_a_heading(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([\w.-]+\.md)(?:#([\w-]+))?\)", text)
    assert links
    for file, heading in links:
        headings = re.findall(r"^#+ (.+)$", (DOCS / file).read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}
        assert not heading or heading in anchors, (file, heading, anchors)
