"""What a person asks of a running trainer, and what it answers: data only, msgpack or JSON, version 1.

A request travels as the opaque body of `wire.Control` and as a file; it is decoded, and so validated, by the
trainer, which knows nothing else to do than what stands here. Imports no torch: the dashboard makes them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from ...errors import WireError
from ...wire import Count, Severity, Text
from ...wire.profiles import MAX_STEPS
from .grammar import MAX_LENGTH

VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 16 * 1024
Source: TypeAlias = Literal["browser", "api", "command"]
Name = Annotated[str, msgspec.Meta(max_length=200)]
Condition = Annotated[str, msgspec.Meta(max_length=MAX_LENGTH)]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen base; a field that is not known is a mistake, for somebody meant something by it."""


class AskState(_Struct, tag="state", tag_field="do", frozen=True):
    """Change nothing; every answer has the state."""


class ChangeLevel(_Struct, tag="set_level", tag_field="do", frozen=True):
    """Measure more or less; see `control.SetLevel`."""

    level: Literal["off", "basic", "advanced", "extreme"]


class ChangePreset(_Struct, tag="set_preset", tag_field="do", frozen=True):
    """Take a preset; null goes back to the level's own switches."""

    preset: Name | None


class ChangeFeatures(_Struct, tag="set_features", tag_field="do", frozen=True):
    """Set single switches to periods in steps; 0 never, null as level and preset have it."""

    features: Annotated[dict[Name, int | None], msgspec.Meta(max_length=64)]


class ChangeLimit(_Struct, tag="set_limit", tag_field="do", frozen=True):
    """Set the overhead limit as a fraction; null is the level's or the preset's."""

    overhead_limit: float | None


class AddWatchpoint(_Struct, tag="add_watchpoint", tag_field="do", frozen=True):
    """Watch a condition; see `rules.options.WatchpointOptions`."""

    condition: Condition
    action: Literal["event", "snapshot", "bundle", "pause", "profile"] = "event"
    name: Name = ""
    severity: Severity | None = None
    once: bool = False
    cooldown_steps: Count = 0


class RemoveWatchpoint(_Struct, tag="remove_watchpoint", tag_field="do", frozen=True):
    """Take out a watchpoint by its name."""

    name: Name


class Resume(_Struct, tag="resume", tag_field="do", frozen=True):
    """Let a paused training go on."""


class Pause(_Struct, tag="pause", tag_field="do", frozen=True):
    """Pause the training before its next update, until it is resumed."""


class KeepSnapshot(_Struct, tag="snapshot", tag_field="do", frozen=True):
    """Keep all numbers of the next step."""


class TakeMemorySnapshot(_Struct, tag="memory_snapshot", tag_field="do", frozen=True):
    """Read memory now: process, machine, CUDA's allocator."""


class Clear(_Struct, tag="clear", tag_field="do", frozen=True):
    """Forget what was found so far, as the session's own call does."""


class WriteBundle(_Struct, tag="bundle", tag_field="do", frozen=True):
    """Write a bundle of the next step."""


class Profile(_Struct, tag="profile", tag_field="do", frozen=True):
    """Profile the next steps."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEPS)] = 5


Request: TypeAlias = (
    AskState
    | ChangeLevel
    | ChangePreset
    | ChangeFeatures
    | ChangeLimit
    | AddWatchpoint
    | RemoveWatchpoint
    | Resume
    | Pause
    | KeepSnapshot
    | TakeMemorySnapshot
    | Clear
    | WriteBundle
    | Profile
)


class Ask(_Struct, frozen=True):
    """A request and who made it."""

    request: Request
    source: Source
    version: int = VERSION
    caller: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """Role and address, as the event of the request has them; "" where they are not known."""


class WatchpointState(msgspec.Struct, frozen=True, kw_only=True):
    """One watchpoint as it is judged."""

    name: Text
    condition: Text
    action: Text
    once: bool


class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """What a trainer is asked for at present."""

    step: Count | None
    """The newest finished step."""
    level: Text
    preset: Text | None
    overhead_limit: float
    is_paused: bool
    watchpoints: Annotated[list[WatchpointState], msgspec.Meta(max_length=1000)]
    is_profiling: bool = False
    """Whether steps are profiled, or about to be."""
    features: Annotated[dict[Text, Count], msgspec.Meta(max_length=64)] = {}
    """Period of each switch in steps, 0 is never; empty where the probe is older than this field."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a request."""

    problem: Text | None
    """Why it was not followed, for the person who asked; None where it was."""
    state: TrainerState
    version: int = VERSION


_ask_decoder = msgspec.msgpack.Decoder(Ask)
_answer_decoder = msgspec.msgpack.Decoder(Answer)
_encoder = msgspec.msgpack.Encoder()


def encode_ask(ask: Ask) -> bytes:
    """Encode a request."""
    return _encoder.encode(ask)


def named_for(data: bytes, caller: str) -> bytes:
    """Return an encoded request with who makes it; one that does not decode as it is, for the trainer to
    refuse."""
    try:
        return encode_ask(msgspec.structs.replace(decode_ask(data), caller=caller))
    except WireError:
        return data


def request_text(request: Request) -> str:
    """Return what is asked, with all that was given: ``set_level (level=extreme)``."""
    fields = msgspec.to_builtins(request)
    name = fields.pop("do")
    given = ", ".join(f"{key}={value}" for key, value in fields.items() if value not in (None, ""))
    return f"{name} ({given})" if given else str(name)


def encode_answer(answer: Answer) -> bytes:
    """Encode an answer."""
    return _encoder.encode(answer)


def decode_ask(data: bytes) -> Ask:
    """Decode and validate a request.

    Raises:
        WireError: it is too large, breaks a type or limit, or is of another version.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise WireError(f"request of {len(data)} bytes; at most {MAX_REQUEST_BYTES} are allowed")
    try:
        ask = _ask_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"request does not decode: {error}") from error
    if ask.version != VERSION:
        raise WireError(f"request of version {ask.version}; this trainer knows {VERSION}")
    return ask


def decode_answer(data: bytes) -> Answer:
    """Decode and validate an answer.

    Raises:
        WireError: it breaks a type or limit.
    """
    try:
        return _answer_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"answer does not decode: {error}") from error


def read_request(data: bytes) -> Request:
    """Read a request that somebody wrote as JSON, such as ``{"do": "resume"}``.

    Raises:
        WireError: says what is wrong with it.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise WireError(f"request of {len(data)} bytes; at most {MAX_REQUEST_BYTES} are allowed")
    try:
        request: Request = msgspec.convert(_whole(msgspec.json.decode(data)), Request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"this is not a request: {error}") from error
    return request


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 10.0 is a whole one."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
