"""Records and messages to bytes, and records back. What does not decode is refused; nothing here does I/O."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import WireError
from .records import MAX_RECORD_BYTES, Record

if TYPE_CHECKING:
    from .messages import Message

_encoder = msgspec.msgpack.Encoder()
_record_decoder = msgspec.msgpack.Decoder(Record)


def encode(value: Record | Message) -> bytes:
    """Encode one record or message as msgpack."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_in_utf8(msgspec.to_builtins(value, builtin_types=(bytes,))))


def sealed(message: Message) -> bytes:
    """Encode a message with its checksum: TCP's own misses one spoilt segment in 65,536.

    Without one a message of the handshake, which has proofs.
    """
    if not hasattr(message, "check"):
        return encode(message)
    data = encode(msgspec.structs.replace(message, check=bytes(4)))[:-4]
    return data + zlib.crc32(data).to_bytes(4, "little")


def encode_record(record: Record) -> bytes:
    """Encode a record that a reader does not refuse: what breaks a type or limit is cut or made to fit.

    For what is written now and then: it reads again what it has written. `Frame`s of healthy steps hold
    numbers that were checked where they came in.

    Raises:
        WireError: it cannot be made to fit, or is too large.
    """
    try:
        data = encode(record)
        decode_record(data)
    except (WireError, msgspec.MsgspecError, TypeError, ValueError, OverflowError):
        from .fitting import fitted

        data = encode(fitted(record))
        decode_record(data)
    return data


def _in_utf8(value: Any) -> Any:
    """Names of files, and what exceptions say, may hold halves of characters: a question mark each."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_in_utf8(key): _in_utf8(item) for key, item in value.items()}
    return list(map(_in_utf8, value)) if isinstance(value, list | tuple) else value


def decode_record(data: bytes) -> Record:
    """Decode and validate one journal record.

    Raises:
        WireError: it is too large, is not msgpack, or breaks a type or limit.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise WireError(f"record of {len(data)} bytes; at most {MAX_RECORD_BYTES} are allowed")
    try:
        record: Record = _record_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"record does not decode: {error}") from error
    return record
