"""What runs were started with, side by side."""

from __future__ import annotations

import msgspec
import pytest
from sample_runs import layout, run_start

from dashboard.comparison.facts import argument_values, compare_facts, compare_layouts
from probe.wire.start_facts import StartFacts, WorkTree


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        ([], {}),
        (["train.py"], {}),
        (
            ["train.py", "--lr", "0.1", "--amp", "--out=x=y"],
            {"--lr": "0.1", "--amp": "given", "--out": "x=y"},
        ),
        (["t.py", "data", "-n", "3", "more"], {"1": "data", "-n": "3", "2": "more"}),
        (["t.py", "--shift", "-0.5", "--tag", "a", "--tag", "b"], {"--shift": "-0.5", "--tag": "a b"}),
        (["t.py", "-"], {"1": "-"}),
    ],
)
def test_arguments_are_split_by_option(argv: list[str], values: dict[str, str]) -> None:
    assert argument_values(argv) == values


def test_facts_that_differ_stand_by_group_and_the_others_are_counted() -> None:
    one = msgspec.structs.replace(
        run_start("a"),
        argv=["train.py", "--lr", "0.1", "--wd", "1"],
        config={"lr": "0.1", "depth": "2"},
        git_commit="abc",
    )
    other = msgspec.structs.replace(
        one,
        argv=["train.py", "--lr", "0.2"],
        config={"lr": "0.2", "depth": "2"},
        versions={"torch": "2.9", "numpy": "2"},
    )
    found = compare_facts([(one, None), (other, None)])
    assert [(fact.group, fact.name, fact.values) for fact in found.differing] == [
        ("Configuration", "lr", ("0.1", "0.2")),
        ("Arguments", "--wd", ("1", None)),
        ("Versions", "torch", ("2.13.0", "2.9")),
        ("Versions", "numpy", (None, "2")),
    ]
    assert found.equal["Configuration"] == 1


def test_changes_since_the_commit_are_told_apart_by_their_digest() -> None:
    def facts(digest: str, size: int) -> StartFacts:
        tree = WorkTree(diff="", sha256=digest * 8, size_bytes=size, files=[], is_whole=True)
        return StartFacts(work_tree=tree)

    start = run_start("a")
    sides = [(start, facts("aabbccdd", 9)), (start, facts("00000000", 0)), (start, None)]
    (fact,) = compare_facts(sides).differing
    assert (fact.name, fact.values) == ("changes since the commit", ("aabbccddaabb", "none", None))


def test_models_differ_by_names_and_shapes() -> None:
    one, other = layout(["a", "b", "c"]), layout(["a", "c", "d"])
    wide = msgspec.structs.replace(other.parameters[1], shape=[9, 9])
    other = msgspec.structs.replace(other, parameters=[other.parameters[0], wide, other.parameters[2]])
    found = compare_layouts(one, other)
    assert (found.only_first, found.only_second) == (("b.weight",), ("d.weight",))
    assert found.reshaped == ("c.weight",) and not found.is_equal
    assert compare_layouts(one, None).is_equal and compare_layouts(one, one).is_equal
