"""The fault bank: every header holds, and a fixed sample of the scripts is judged as its headers say.

`make detection` runs all of it; this is what CI can afford.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from probe.wire import KINDS

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "faults"))
sys.path.insert(0, str(TESTS / "benchmarks"))

from bank import Script, load_bank, problems_of, read_script  # noqa: E402
from detection import measure, table_of  # noqa: E402
from detection_verdicts import Verdict, add_up, judge, judge_rival  # noqa: E402

BANK = load_bank()
SAMPLE = ("rmsnorm_without_eps", "where_guards_the_wrong_side")


def test_bank_has_the_size_it_must_have() -> None:
    healthy = [script for script in BANK if script.is_healthy]
    assert len(BANK) - len(healthy) >= 50
    assert len(healthy) >= 40
    assert sum(script.steps for script in healthy) >= 20_000


@pytest.mark.parametrize("script", BANK, ids=lambda script: script.name)
def test_header_is_sound_and_the_script_knows_nothing_of_it(script: Script) -> None:
    assert problems_of(script, KINDS) == []
    tree = ast.parse(script.path.read_text())
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {
        (node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    }
    assert imported.isdisjoint({"probe", "dashboard", "bank"})
    assert script.right_lines == _lines_of_marks(script.path)


def _lines_of_marks(path: Path) -> frozenset[int]:
    """Lines that hold code and a comment that is a mark, as Python's own tokenizer sees them."""
    with path.open("rb") as source:
        tokens = list(tokenize.tokenize(source.readline))
    code = {token.start[0] for token in tokens if token.type in (tokenize.NAME, tokenize.OP)}
    marks = {
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and token.string.split()[1:2] in (["FAULT"], ["ORIGIN"])
    }
    return frozenset(marks & code)


def test_halves_depend_on_names_alone_and_are_about_equal() -> None:
    halves = {script.name: script.half for script in BANK}
    assert halves["rmsnorm_without_eps"] == "tuning"  # sha256 of the name begins with an even byte
    assert halves["attention_row_fully_masked"] == "reported"
    for is_healthy in (True, False):
        group = [script.half for script in BANK if script.is_healthy == is_healthy]
        assert 0.35 < group.count("tuning") / len(group) < 0.65


@pytest.fixture
def faulty_script(tmp_path: Path) -> Script:
    path = tmp_path / "planted.py"
    header = '"""A fault.\n\nfamily: forward\nkinds: nonfinite_loss\nstep: 10\nmodule: norm | outside\n"""\n'
    path.write_text(f"{header}x = 1 / 0  # FAULT\ny = x  # ORIGIN\n")
    return read_script(path)


def event(
    step: int, *, kind: str = "nonfinite_loss", severity: str = "critical", line: int = 8
) -> dict[str, Any]:
    """An event of the script above as `dashboard events --json` prints it."""
    frames = [{"file": "/a/planted.py", "line": line}, {"file": "/a/site-packages/torch/f.py", "line": 1}]
    return {
        "step": step,
        "kind": kind,
        "severity": severity,
        "message": "NaN",
        "time": 1.0,
        "origin": {"phase": "forward", "op": "div", "module": "norm"},
        "stacks": {"forward": frames, "backward": [], "training_loop": []},
    }


def test_header_is_read_as_written(faulty_script: Script) -> None:
    assert faulty_script.modules == ("norm", None)
    assert (faulty_script.fault_lines, faulty_script.origin_lines) == ({8}, {9})
    assert faulty_script.is_nonfinite


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event(11)], (True, 1, True, 0)),
        ([event(11, line=9)], (True, 1, True, 0)),
        ([event(10, line=7)], (True, 0, False, 0)),
        ([event(9)], (False, None, False, 1)),
        ([event(11, severity="info")], (False, None, False, 0)),
        ([event(11, kind="loss_spike")], (False, None, False, 0)),
        ([event(3, kind="loss_spike"), event(14), event(12)], (True, 2, True, 1)),
        ([], (False, None, False, 0)),
    ],
)
def test_verdict_on_a_fault(
    faulty_script: Script, events: list[dict[str, Any]], expected: tuple[bool, int | None, bool, int]
) -> None:
    verdict = judge(faulty_script, events, steps=40)
    false_alarms = len(verdict.false_alarms)
    assert (verdict.is_found, verdict.delay, verdict.is_line_right, false_alarms) == expected
    assert verdict.is_module_right is verdict.is_found
    assert verdict.steps == 10


def test_verdict_on_another_tool(faulty_script: Script) -> None:
    said = {"tool": "anomaly", "found": True, "step": 10, "message": "", "module": None, "line": 8}
    right, wrong, early = (
        judge_rival(faulty_script, {**said, **more}) for more in ({}, {"line": 7}, {"step": 4})
    )
    assert (right.is_found, right.is_line_right, right.is_module_right) == (True, True, False)
    assert (wrong.is_found, wrong.is_line_right) == (True, False)
    assert (early.is_found, len(early.false_alarms)) == (False, 1)


def test_scores_count_what_was_missed_as_wrong(faulty_script: Script) -> None:
    verdicts = [judge(faulty_script, events, steps=40) for events in ([event(13)], [event(10, line=7)], [])]
    score = add_up(verdicts)
    assert (score.scripts, score.found, score.lines, score.line_right) == (3, 2, 3, 1)
    assert (score.median_delay, score.false_alarms, score.steps) == (1.5, 0, 30)
    assert table_of(verdicts)[1].split() == ["forward", "3", "2/3", "2/3", "1/3", "1.5", "0", "30", "0.00"]


@pytest.mark.slow
@pytest.mark.capability(10, 12)
def test_sample_of_the_bank_is_judged_as_its_headers_say() -> None:
    scripts = {script.name: script for script in BANK}
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(measure, (scripts[name] for name in SAMPLE)))
    for verdict in verdicts:
        assert verdict.problem is None, verdict
        assert verdict.false_alarms == (), verdict
        assert_found_at_once(verdict)


def test_curriculum_is_silent_and_its_faulty_sibling_warns_of_the_first_step() -> None:
    scripts = {script.name: script for script in BANK}
    quiet = measure(scripts["curriculum_longer_sequences"])
    assert quiet.problem is None and quiet.false_alarms == (), quiet
    faulty = measure(scripts["longer_sequences_of_noise"])
    assert faulty.problem is None and faulty.false_alarms == () and faulty.is_found and faulty.delay == 0, (
        faulty
    )


def assert_found_at_once(verdict: Verdict) -> None:
    assert verdict.is_found, verdict
    assert verdict.delay == 0, verdict
    assert verdict.is_line_right, verdict
    assert verdict.is_module_right is not False, verdict
