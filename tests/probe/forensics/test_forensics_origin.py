"""The slice rule on hand-made records, without torch."""

from hypothesis import given
from hypothesis import strategies as st

from probe.forensics.nonfinite_kinds import Kinds
from probe.forensics.origin import Cause, Record, descendants, find_origin, slice_backwards

NAN, INF, MASK = Kinds.NAN, Kinds.POSITIVE_INFINITY, Kinds.NEGATIVE_INFINITY


def _cause(producer, kinds=NAN, source="outside"):
    return Cause(kinds=kinds, producer=producer, source=source)


def _records(*records):
    """(index, kinds, producers or causes, constant)."""
    made = {}
    for index, kinds, inputs, *constant in records:
        causes = tuple(c if isinstance(c, Cause) else _cause(c, made[c].kinds) for c in inputs)
        made[index] = Record(index=index, kinds=kinds, inputs=causes, constant=bool(constant))
    return made


def test_first_creator_in_the_slice_is_the_origin():
    records = _records((3, INF, []), (5, NAN, [3]), (6, NAN, [5]))
    assert find_origin(records, [_cause(6)]).record == 3


def test_creator_outside_the_slice_is_not_the_origin():
    records = _records((1, NAN, []), (4, NAN, []), (5, NAN, [4]))
    assert find_origin(records, [_cause(5)]).record == 4


def test_mask_comes_after_the_op_that_made_nan_of_it():
    records = _records((1, MASK, [], True), (2, NAN, [1]))
    verdict = find_origin(records, [_cause(2)])
    assert (verdict.record, verdict.weak) == (2, False)


def test_mask_alone_is_a_weak_verdict():
    records = _records((1, MASK, [], True), (2, MASK, [1]))
    verdict = find_origin(records, [_cause(2, MASK)])
    assert (verdict.record, verdict.weak) == (1, True)


def test_nan_constant_is_an_ordinary_creator():
    records = _records((1, NAN, [], True), (2, NAN, [1]))
    assert not find_origin(records, [_cause(2)]).weak


def test_bad_parameter_wins_over_every_op():
    records = _records((1, INF, []), (2, NAN, [1, _cause(None, NAN, "parameter")]))
    assert find_origin(records, [_cause(2)]).entry.source == "parameter"


def test_mask_argument_loses_against_a_creator():
    records = _records((2, MASK, [_cause(None, MASK, "argument")]), (3, NAN, [2]))
    assert find_origin(records, [_cause(3)]).record == 3


def test_infinite_gradient_from_outside_is_an_entry_whatever_its_sign():
    verdict = find_origin({}, [_cause(None, MASK, "gradient")])
    assert (verdict.entry.source, verdict.weak) == ("gradient", False)


def test_reader_of_unknown_bad_memory_is_the_last_resort():
    records = _records((4, NAN, [_cause(None)]), (5, NAN, [4]))
    verdict = find_origin(records, [_cause(5)])
    assert (verdict.record, verdict.weak) == (4, False)


def test_nothing_bad_has_no_origin():
    assert find_origin({}, []) is None


def test_descendants_are_what_the_values_went_into():
    records = _records((1, NAN, []), (2, NAN, []), (3, NAN, [1]), (4, NAN, [2]), (5, NAN, [3, 4]))
    assert [record.index for record in descendants(records, 1)] == [3, 5]


@st.composite
def _graphs(draw):
    made = {}
    for index in range(draw(st.integers(1, 25))):
        producers = draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []
        kinds = Kinds(draw(st.integers(1, 7)))
        causes = tuple(_cause(producer, made[producer].kinds) for producer in producers)
        made[index] = Record(index=index, kinds=kinds, inputs=causes, constant=draw(st.booleans()))
    return made


@given(_graphs())
def test_origin_reaches_the_end_and_creates_something(records):
    end = max(records)
    verdict = find_origin(records, [_cause(end, records[end].kinds)])
    assert verdict.record in {record.index for record in slice_backwards(records, [_cause(end)])}
    assert records[verdict.record].creates


@given(_graphs())
def test_no_earlier_ordinary_creator_lies_in_the_slice(records):
    end = max(records)
    verdict = find_origin(records, [_cause(end, records[end].kinds)])
    ordinary = [
        record.index
        for record in slice_backwards(records, [_cause(end)])
        if record.creates and not (record.constant and not record.kinds & NAN)
    ]
    assert verdict.record == ordinary[0] if ordinary else verdict.weak
