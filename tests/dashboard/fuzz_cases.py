"""Makes odd inputs out of real ones: flips, cuts, splices, repeats, values beyond all limits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec

TOKENS = (
    b"\0", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff", b"\xdb\x00\x10\x00\x00", b"\xc1", b"\xcb\x7f\xf0" + bytes(6),
    b"\xcb\x7f\xf8" + bytes(6),
    b"\x91" * 3000, b"\x81\xa1a" * 1000, b"[" * 3000, b'{"a":' * 1000, b"(" * 200, b"[[a.b]]\n" * 3,
    b"../", b"\r\n",
    b"%00", b"\xed\xa0\x80", b"\xe2\x80\xae", "ı＜²".encode(), b"-1", b"1e400", b"NaN", b"9" * 5000,
    b"18446744073709551616", b"9223372036854775808", b"4611686018427387904", b"null", b"\"", b"'", b"=",
    b"&", b",",
)  # fmt: skip
MOST_BYTES = 200_000
VALUES: Final = (
    0, -1, 1, 2**31, 2**53, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, -0.0, 1e308, -1e308,
    5e-324, float("nan"), float("inf"), float("-inf"), None, True, "", "\0", "../x", "a" * 5000, "con",
    "NaN", "\u202e",
    "line\nfeed", b"", b"\0", b"x" * 100, [], {}, [[]], {"": None}, "host_sample", "frame", "events",
    "0-1", "f8",
)  # fmt: skip
Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
MSGPACK: Final[Codec] = (msgspec.msgpack.decode, msgspec.msgpack.encode)
JSON: Final[Codec] = (msgspec.json.decode, msgspec.json.encode)


def odd_inputs(
    seeds: Sequence[bytes], *, seed: int, count: int, codec: Codec | None = None
) -> Iterator[bytes]:
    """Yield mutated seeds, the seeds themselves first; the same ones for the same `seed`.

    With a codec, half of them are well formed and hold an odd value somewhere.
    """
    random_ = random.Random(seed)
    yield from seeds[:count]
    pool = list(seeds)
    for _ in range(max(0, count - len(seeds))):
        if codec is not None and random_.random() < 0.5:
            decode, encode = codec
            value = decode(random_.choice(seeds))
            for _ in range(1 + min(int(random_.expovariate(1.0)), 12)):
                value = _with_odd_value(value, random_)
            yield encode(value)
            continue
        data = bytearray(random_.choice(pool))
        for _ in range(1 + min(int(random_.expovariate(1.0)), 12)):
            _change(data, random_, pool)
        result = bytes(data[:MOST_BYTES])
        if random_.random() < 0.02:  # what was changed is changed further
            pool.append(result)
            del pool[len(seeds) : -200]
        yield result


def _with_odd_value(value: Any, random_: random.Random) -> Any:
    """Replace, repeat or leave out one thing somewhere below."""
    if isinstance(value, dict) and value and random_.random() < 0.95:
        name = random_.choice(sorted(value, key=str))
        if random_.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: _with_odd_value(value[name], random_)}
    if isinstance(value, list) and value and random_.random() < 0.9:
        at = random_.randrange(len(value))
        if random_.random() < 0.2:
            return value * random_.choice([0, 2, 300]) if len(value) < 300 else value
        return [*value[:at], _with_odd_value(value[at], random_), *value[at + 1 :]]
    like = [one for one in VALUES if type(one) is type(value)]
    return random_.choice(like if like and random_.random() < 0.8 else VALUES)


def _change(data: bytearray, random_: random.Random, pool: Sequence[bytes]) -> None:
    at = random_.randrange(len(data) + 1)
    end = min(len(data), at + random_.choice([1, 2, 4, 8, 64]))
    match random_.randrange(8):
        case 0 if at < len(data):
            data[at] ^= 1 << random_.randrange(8)
        case 1 if at < len(data):
            data[at] = random_.choice([0, 1, 0x7F, 0x80, 0xC1, 0xFE, 0xFF, random_.randrange(256)])
        case 2:
            del data[at:]
        case 3:
            del data[at:end]
        case 4:
            data[at:end] = random_.choice(TOKENS)
        case 5:
            data[at:at] = data[at:end] * random_.choice([1, 3, 50])
        case 6:
            other = random_.choice(pool)
            begin = random_.randrange(len(other) + 1)
            data[at:] = other[begin:]
        case _:
            data[at:at] = random_.choice(TOKENS)
