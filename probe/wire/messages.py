"""The only description of what travels over ZeroMQ: a *message* is one frame between helper and collector.

Msgpack through msgspec, version 1; see `encoding.py`. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import hmac
import zlib
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from ..errors import WireError
from .records import Count, RequestId, RunId, SentStream, Text, WireStruct, WriterId

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Both ends set ZMQ_MAXMSGSIZE to this: a larger frame disconnects its sender."""


Check: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=4, max_length=4)] | None
"""Little-endian crc32 of the bytes before it, the last four of a message; None from an older version."""


class StreamKey(WireStruct, array_like=True, frozen=True, kw_only=True):
    """Names one stream: one writer, contiguous sequence numbers from 0."""

    run: RunId
    writer: WriterId
    """The spool's folder name: ``<rank>-<incarnation>`` or ``host-<name>``."""
    stream: SentStream


class Hello(WireStruct, tag="hello", tag_field="m", frozen=True, kw_only=True):
    """Helper -> collector, first message of a connection."""

    version: int
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]
    takes_control: bool = False
    """Whether the helper understands `Control`; an older one would take it for garbage."""
    takes_watch: bool = False
    """The same of `Watch`."""


class Challenge(WireStruct, tag="challenge", tag_field="m", frozen=True, kw_only=True):
    """Collector -> helper: proves that the collector knows the ingest secret and asks for the same."""

    version: int
    nonce: Annotated[bytes, msgspec.Meta(min_length=16, max_length=64)]
    proof: bytes
    takes_detail: bool = False
    """Whether the collector understands the stream `detail`; an older one is sent all in `metrics`."""


class Proof(WireStruct, tag="proof", tag_field="m", frozen=True, kw_only=True):
    """Helper -> collector: the helper knows the secret too."""

    proof: bytes


class Position(WireStruct, tag="position", tag_field="m", frozen=True, kw_only=True):
    """Helper -> collector: "where shall I start with this stream?" Answered by an `Ack`."""

    key: StreamKey
    check: Check = None


class Batch(WireStruct, tag="batch", tag_field="m", frozen=True, kw_only=True):
    """Helper -> collector: encoded records `first_seq, first_seq + 1, ...` of one stream."""

    key: StreamKey
    first_seq: Count
    records: Annotated[list[bytes], msgspec.Meta(max_length=100_000)]
    check: Check = None


class Skip(WireStruct, tag="skip", tag_field="m", frozen=True, kw_only=True):
    """Helper -> collector: `[first_seq, end_seq)` no longer exists in the journal; count it as a gap."""

    key: StreamKey
    first_seq: Count
    end_seq: Count
    reason: Text
    check: Check = None


class Ack(WireStruct, tag="ack", tag_field="m", frozen=True, kw_only=True):
    """Collector -> helper, after the store's commit: everything below `next_seq` is durable."""

    key: StreamKey
    next_seq: Count
    check: Check = None


class Control(WireStruct, tag="control", tag_field="m", frozen=True, kw_only=True):
    """Collector -> helper: what a person asks of the run's trainers. Answered by one `Answered`."""

    id: RequestId
    run: RunId
    rank: Count | None = None
    """None asks every rank."""
    request: Annotated[bytes, msgspec.Meta(max_length=16 * 1024)]
    """An encoded `control_messages.Ask`; the trainer decodes it."""
    caller: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Who asks; "" where it is not known. A helper that is older passes the request on without."""
    check: Check = None


class Watch(WireStruct, tag="watch", tag_field="m", frozen=True, kw_only=True):
    """Collector -> helper: send these ranks in full, whatever is pooled otherwise; until the next one."""

    run: RunId
    ranks: Annotated[list[Count], msgspec.Meta(max_length=4096)]
    check: Check = None


class Answered(WireStruct, tag="answered", tag_field="m", frozen=True, kw_only=True):
    """Helper -> collector: what this host's trainers have answered to a `Control`."""

    id: RequestId
    answers: Annotated[list[tuple[WriterId, bytes | None]], msgspec.Meta(max_length=100_000)]
    """Each trainer with its encoded `control_messages.Answer`; None where there was none in time."""
    check: Check = None


class Refused(WireStruct, tag="refused", tag_field="m", frozen=True, kw_only=True):
    """Collector -> helper: why it will not talk (wrong version, wrong secret, malformed message)."""

    reason: Text


Message: TypeAlias = (
    Hello | Challenge | Proof | Position | Batch | Skip | Ack | Control | Watch | Answered | Refused
)


def handshake_proof(secret: bytes, side: Literal["collector", "helper"], *nonces: bytes) -> bytes:
    """HMAC-SHA256 of the two nonces, own first; `side` keeps one side's proof from serving as the other's."""
    return hmac.new(secret, side.encode() + b"\0" + b"\0".join(nonces), hashlib.sha256).digest()


_decoder = msgspec.msgpack.Decoder(Message)


def decode_message(data: bytes) -> Message:
    """Decode and validate one ZeroMQ message.

    Raises:
        WireError: it is too large, is not msgpack, breaks a type or limit, or was changed on its way.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")
    try:
        message: Message = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"message does not decode: {error}") from error
    check: Check = getattr(message, "check", None)
    if check is None:
        return message
    if check != zlib.crc32(memoryview(data)[:-4]).to_bytes(4, "little"):
        raise WireError("message was changed on its way: its checksum is wrong")
    unsealed: Message = msgspec.structs.replace(message, check=None)
    return unsealed
