"""`rules.parser`: what a condition may be, what is refused and where, and that no text does anything else."""

import builtins
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.delivery.control.grammar import (
    HISTORY,
    MAX_LENGTH,
    MODULE_FUNCTIONS,
    NAMES,
    PARAMETER_FUNCTIONS,
    Arithmetic,
    Comparison,
    History,
    Junction,
    Negation,
    Negative,
    Number,
    Quantity,
)
from probe.delivery.control.parser import parse

NORM = Quantity("grad_norm", "layers.3.*")
WORDS = [*NAMES, *PARAMETER_FUNCTIONS, *MODULE_FUNCTIONS, *HISTORY, "logged", "when", "and", "or", "not"]
PIECES = [
    *WORDS,
    "(",
    ")",
    '"*"',
    "'x'",
    "1",
    "0.5",
    "1e9",
    "+",
    "-",
    "*",
    "/",
    "%",
    "**",
    ">",
    "<",
    "==",
    "in",
]
PIECES += [
    "lambda",
    "x",
    ".",
    ",",
    ":=",
    "[",
    "]",
    "{",
    "}",
    "for",
    "if",
    "else",
    "is",
    "await",
    "f''",
    "@",
    "~",
]


def test_the_example_of_the_docs_is_read() -> None:
    text = 'grad_norm("layers.3.*") > 8 * median'
    expected = Comparison(">", NORM, Arithmetic("*", Number(8.0), History("median")), text)
    assert parse(f"when {text}") == parse(f"  WHEN\n {text}") == parse(text) == expected


def test_and_or_not_and_signs_make_the_tree_that_python_would() -> None:
    condition = parse("not loss > -1 and step % 100 == 0 or grad_norm < 1 - 2 - 3")
    assert isinstance(condition, Junction)
    first, second = condition.operands
    assert not condition.is_all
    assert isinstance(first, Junction)
    assert first.is_all
    inner = first.operands[0]
    assert isinstance(inner, Negation)
    assert isinstance(inner.operand, Comparison)
    assert inner.operand.right == Negative(Number(1.0))
    assert isinstance(second, Comparison)
    assert second.right == Arithmetic("-", Arithmetic("-", Number(1.0), Number(2.0)), Number(3.0))


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("loss > 9**9**9", "'9**9**9' at character 8", "not allowed here: write numbers"),
        ("__import__('os').system('x') > 1", "at character 1", "calls something that conditions do not know"),
        ("loss.real > 1", "'loss.real' at character 1", "not allowed here"),
        ("open('x') > 1", "\"open('x')\" at character 1", "calls something that conditions do not know"),
        ("[x for x in y] > 1", "at character 1", "not allowed here"),
        ("(lambda: 1)() > 1", "at character 1", "calls something that conditions do not know"),
        ("loss > True", "'True' at character 8", "is not a number"),
        ("loss > 1j", "'1j' at character 8", "is not a number"),
        ("loss > 1e999", "'1e999' at character 8", "too large"),
        ("loss", "'loss' at character 1", "is not a condition: write comparisons"),
        ("1 < loss < 2", "at character 1", "join two comparisons by and"),
        ("loss in 3", "'loss in 3' at character 1", "not a comparison of numbers"),
        ("lösses > 1", "'lösses' at character 1", "not a name that conditions know"),
        ("step > 1 and lösses > 1", "'lösses' at character 14", "not a name"),
        ("median > loss", "'median' at character 1", "what is watched stands left"),
        ("3 > median", "'3' at character 1", "has no history"),
        ('grad_norm("a*") > grad_norm("b*")', "at character 1", "two patterns"),
        ("activation_rms() > 1", "at character 1", "one name or pattern in quotes"),
        ("grad_norm(loss) > 1", "'loss' at character 11", "not a name or pattern in quotes"),
        ("logged('x', 'y') > 1", "at character 1", "one name or pattern in quotes"),
        ("loss >", "'loss >' at character 1", "cannot be read"),
        ("when ", "", "the condition is empty"),
        ("loss > 1" + " " * MAX_LENGTH, "", f"at most {MAX_LENGTH} are allowed"),
        ("-" * 60 + "loss > 1", "", "more than 24 operations deep"),
        ("(" * 240 + "loss" + ")" * 240 + " > 1", "", "cannot be read"),
        ("\0", "", "cannot be read"),
    ],
)
def test_what_is_not_allowed_is_refused_with_its_place_and_a_way_out(text: str, place: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refused:
        parse(text)
    assert place in str(refused.value)


def test_two_different_things_of_the_same_pattern_can_be_compared() -> None:
    condition = parse('update_ratio("a.*") > 0.1 * grad_norm("a.*")')
    assert isinstance(condition, Comparison)
    assert condition.left == Quantity("update_ratio", "a.*")


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join)))
def test_arbitrary_text_is_a_condition_or_a_value_error_and_does_nothing(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("eval", "exec", "open"):
            patch.setattr(builtins, name, _never)
        try:
            condition = parse(text)
        except ValueError as refused:
            assert str(refused)
        else:
            assert isinstance(condition, Comparison | Junction | Negation)


def _never(*args: object, **kwargs: object) -> None:
    pytest.fail("a condition was executed")


_numbers = st.one_of(
    st.integers(0, 10**6).map(str),
    st.sampled_from([*NAMES, "grad_norm", 'grad_norm("a.*")', 'nan_count("b")', 'logged("x y")']),
)
_terms = st.recursive(
    _numbers,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda t: f"({' '.join(t)})"),
    max_leaves=6,
)
_comparisons = st.tuples(_terms, st.sampled_from([">", ">=", "<", "<=", "==", "!="]), _terms).map(" ".join)
_conditions = st.recursive(
    _comparisons,
    lambda inner: st.one_of(
        inner.map(lambda text: f"not ({text})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})"),
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(_conditions.filter(lambda text: len(text) <= MAX_LENGTH))
def test_everything_that_the_grammar_makes_is_read(text: str) -> None:
    assert parse(text) == parse(f"when {text}")
