"""What is kept with a run so that it can be made again: a real script in a real work tree of git."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dashboard.ingest.reading import read_runs
from dashboard.store.duck import DuckStore
from probe.wire.documents import read_body
from probe.wire.start_facts import KIND, MAX_DIFF, StartFacts

ARGUMENTS = ["--lr", "0.5", "--api-key=S3CRET"]
SCRIPT = """
import argparse, random, time
import numpy, torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--api-key")
options = parser.parse_args()
torch.manual_seed(7)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=options.lr)
for step in range(40):
    optimizer.zero_grad()
    net(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    time.sleep(0.06)
"""


def git(folder: Path, *command: str) -> bytes:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", *names, *command], cwd=folder, check=True, capture_output=True).stdout


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "other.txt").write_text("a\n")
    git(folder, "init", "-q"), git(folder, "add", "."), git(folder, "commit", "-qm", "first")
    return folder


def run(work_tree: Path, spool: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "dashboard", "run", "--quiet", "train.py", *ARGUMENTS]
    subprocess.run(command, cwd=work_tree, check=True, timeout=120)
    (found,) = spool.glob("*/run.json")
    kept: dict[str, object] = json.loads(found.read_text())
    return kept


@pytest.mark.slow
@pytest.mark.capability(60)
def test_run_keeps_arguments_seeds_and_changes_of_its_work_tree(work_tree: Path, spool: Path) -> None:
    (work_tree / "other.txt").write_text("a\nb\n")
    diff = git(work_tree, "diff", "HEAD")
    kept = run(work_tree, spool)
    assert kept["config"] == {"lr": "0.5", "api_key": "***"} and kept["config_source"] == "argparse"
    assert kept["git_commit"] == git(work_tree, "rev-parse", "HEAD").decode().strip()
    assert (
        kept["torch_seed"] == 7 and kept["seeds"]["torch"] == "7" and kept["options"]["model_name"] == "net"
    )  # type: ignore[index]
    tree = kept["work_tree"]
    assert tree["diff"] == diff.decode() and tree["files"] == ["other.txt"]  # type: ignore[index]
    assert tree["sha256"] == hashlib.sha256(diff).hexdigest() and tree["size_bytes"] == len(diff)  # type: ignore[index]
    assert not any(b"S3CRET" in file.read_bytes() for file in spool.rglob("*") if file.is_file())


@pytest.mark.slow
def test_large_diff_is_kept_as_its_digest_and_reaches_the_store(work_tree: Path, spool: Path) -> None:
    (work_tree / "other.txt").write_text("line of text\n" * 10_000)
    kept = run(work_tree, spool)
    tree = kept["work_tree"]
    assert tree["diff"] == "" and tree["size_bytes"] > MAX_DIFF and tree["is_whole"]  # type: ignore[index]
    store = DuckStore(spool.parent / "data")
    list(read_runs(store, [spool / str(kept["run"])]))
    (found,) = store.documents(str(kept["run"]), KIND)
    facts = read_body(found.document, StartFacts)
    store.close()
    assert facts.config == kept["config"] and facts.work_tree is not None
    assert facts.work_tree.sha256 == tree["sha256"]  # type: ignore[index]


@pytest.mark.slow
def test_clean_work_tree_is_kept_as_nothing(work_tree: Path, spool: Path) -> None:
    assert "work_tree" not in run(work_tree, spool)
