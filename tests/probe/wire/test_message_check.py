"""A message that was changed on its way is refused, never taken for another one."""

from __future__ import annotations

import random

import pytest

from probe.errors import WireError
from probe.wire import (
    Ack,
    Answered,
    Batch,
    Control,
    Frame,
    Message,
    Position,
    Skip,
    StreamKey,
    decode_message,
    encode,
    sealed,
)

KEY = StreamKey(run="run", writer="0-1", stream="metrics")
RECORDS = [encode(Frame(step=step, time=1.0, scalars={"loss": 0.25})) for step in range(3)]
MESSAGES: list[Message] = [
    Position(key=KEY),
    Batch(key=KEY, first_seq=300, records=RECORDS),
    Skip(key=KEY, first_seq=3, end_seq=70_000, reason="it is gone"),
    Ack(key=KEY, next_seq=70_000),
    Control(id="1" * 32, run="run", request=b"level"),
    Answered(id="1" * 32, answers=[("0-1", b"done"), ("1-1", None)]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_with_any_bit_changed_is_refused_or_says_the_same(message: Message) -> None:
    data = sealed(message)
    for bit in range(8 * len(data)):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_message(bytes(spoilt))
        except WireError:
            continue
        assert found == message, bit


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_sealed_message_arrives_as_it_was(message: Message) -> None:
    assert decode_message(sealed(message)) == message


def test_message_of_a_helper_without_checksums_is_taken() -> None:
    assert decode_message(encode(MESSAGES[1])) == MESSAGES[1]


def test_messages_cut_spliced_and_swapped_are_refused_or_whole() -> None:
    chance = random.Random(5)
    sealed_ones = [sealed(message) for message in MESSAGES]
    refused = 0
    for _ in range(5000):
        one, other = chance.sample(sealed_ones, 2)
        at, after = chance.randrange(len(one)), chance.randrange(len(other))
        try:
            found = decode_message(one[:at] + other[after:])
        except WireError:
            refused += 1
            continue
        assert found in MESSAGES
    assert refused > 4000
