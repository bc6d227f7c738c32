"""Makes a record fit the types and limits that its reader holds it to. Pure; loads no torch.

Used by `encoding.encode_record` for the rare record that a reader would refuse: texts are cut, numbers are
brought to their type and range, what cannot be is left at its default or out of its dictionary.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
import msgspec.inspect as kinds

from ..errors import WireError

T = TypeVar("T")


def fitted(record: T) -> T:
    """Return the record itself, or one that is like it and fits.

    Raises:
        WireError: a part that it must have is of another kind, or an id has characters that no id may have.
    """
    fit: T = _fit(record, kinds.type_info(type(record)))
    return fit


def _fit(value: Any, kind: Any) -> Any:
    rule = _RULES.get(type(kind))
    if rule is None:
        raise WireError(f"nothing can be made of a {type(value).__name__}")
    try:
        return rule(value, kind)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        # A number or text of the script's own type may raise anything when it is asked for its value.
        raise WireError(f"a {type(value).__name__} does not fit: {error}") from error


def _struct(value: Any, kind: kinds.StructType) -> Any:
    if not isinstance(value, kind.cls):
        raise WireError(f"a {type(value).__name__} in the place of a {kind.cls.__name__}")
    given = ((field, getattr(value, field.name)) for field in kind.fields)
    return kind.cls(**{field.name: _field(item, field) for field, item in given if item is not msgspec.UNSET})


def _field(value: Any, field: kinds.Field) -> Any:
    try:
        return _fit(value, field.type)
    except WireError:
        if field.required:
            raise
        if field.default is field.default_factory:
            return msgspec.UNSET  # neither is there: a field that may be absent
        return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()


def _text(value: Any, kind: kinds.StrType) -> str:
    if not isinstance(value, str):
        value = str(value)
    cut: str = value.encode("utf-8", "replace").decode()[: kind.max_length]
    if kind.pattern is not None:
        # An id: one that is cut would be another one.
        msgspec.convert(cut, type=_with_pattern(kind.pattern))
    return cut


def _with_pattern(pattern: str) -> Any:
    from typing import Annotated

    return Annotated[str, msgspec.Meta(pattern=pattern)]


def _whole(value: Any, kind: kinds.IntType) -> int:
    number = int(value) if isinstance(value, float) else operator.index(value)
    low = -(2**63) if kind.ge is None else int(kind.ge)
    high = 2**63 - 1 if kind.le is None else int(kind.le)
    return min(max(number, low), high)


def _float(value: Any, _: kinds.FloatType) -> float:
    if isinstance(value, str | bytes | bool):
        raise WireError(f"a {type(value).__name__} in the place of a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _bytes(value: Any, kind: kinds.BytesType) -> bytes:
    if kind.max_length is not None and len(value) > kind.max_length:
        raise WireError(f"{len(value)} bytes; at most {kind.max_length} are allowed")
    return bytes(value)


def _list(value: Any, kind: kinds.ListType) -> list[Any]:
    # Positions mean something in most lists: an element that cannot be made to fit is not left out.
    return [_fit(item, kind.item_type) for item in list(value)[: kind.max_length]]


def _tuple(value: Any, kind: kinds.TupleType) -> tuple[Any, ...]:
    return tuple(_fit(item, of) for item, of in zip(value, kind.item_types, strict=True))


def _dict(value: Any, kind: kinds.DictType) -> dict[Any, Any]:
    fit: dict[Any, Any] = {}
    for key, item in dict(value).items():
        if kind.max_length is not None and len(fit) >= kind.max_length:
            break
        try:
            fit[_fit(key, kind.key_type)] = _fit(item, kind.value_type)
        except WireError:
            continue
    return fit


def _union(value: Any, kind: kinds.UnionType) -> Any:
    wanted = next((of for of in kind.types if type(of) is _OF_TYPE.get(type(value))), None)
    others = [of for of in kind.types if of is not wanted and not isinstance(of, kinds.NoneType)]
    for of in [wanted, *others] if wanted is not None else others:
        try:
            return _fit(value, of)
        except WireError:
            continue
    if any(isinstance(of, kinds.NoneType) for of in kind.types):
        return None
    raise WireError(f"nothing can be made of a {type(value).__name__}")


def _literal(value: Any, kind: kinds.LiteralType) -> Any:
    if value not in kind.values:
        raise WireError(f"{value!r} is none of {kind.values}")
    return value


def _bool(value: Any, _: kinds.BoolType) -> bool:
    if not isinstance(value, bool):
        raise WireError(f"a {type(value).__name__} in the place of a bool")
    return value


def _none(value: Any, _: kinds.NoneType) -> None:
    if value is not None:
        raise WireError(f"a {type(value).__name__} in the place of None")


_RULES: Final[dict[type, Callable[[Any, Any], Any]]] = {
    kinds.StructType: _struct,
    kinds.StrType: _text,
    kinds.IntType: _whole,
    kinds.FloatType: _float,
    kinds.BytesType: _bytes,
    kinds.ListType: _list,
    kinds.TupleType: _tuple,
    kinds.DictType: _dict,
    kinds.UnionType: _union,
    kinds.LiteralType: _literal,
    kinds.BoolType: _bool,
    kinds.NoneType: _none,
}
_OF_TYPE: Final[dict[type, type]] = {
    type(None): kinds.NoneType,
    bool: kinds.BoolType,
    int: kinds.IntType,
    float: kinds.FloatType,
    str: kinds.StrType,
    list: kinds.ListType,
    dict: kinds.DictType,
}
