"""Arguments as JSON and back, without pickle: containers, numbers, strings and references to tensors.

What JSON has no word for is an object with one key, ``{"tuple": [...]}`` say. Anything else is declined with
its path; reading imports nothing and calls nothing that the bundle names.
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ...errors import BundleError
from .packer import dtype_name
from .unpacker import dtype_called

_MAX_DEPTH: Final = 64
_SEQUENCES: Final[dict[type, str]] = {list: "list", tuple: "tuple", torch.Size: "size"}
_DICTIONARIES: Final[dict[type, str]] = {dict: "dict", OrderedDict: "ordered"}
_LAYOUTS: Final = {"strided": torch.strided, "sparse_coo": torch.sparse_coo}
_FORMATS: Final = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}


class Encoder:
    """Turns values into what JSON can hold.

    Args:
        tensor: gives a tensor's reference, which is JSON, for it and its path.
        names: of parameters and modules, by identity.
    """

    def __init__(
        self, tensor: Callable[[Tensor, str], Any], *, names: Mapping[int, tuple[str, str]] | None = None
    ) -> None:
        self._tensor = tensor
        self._names = names or {}

    def encode(self, value: Any, path: str, depth: int = _MAX_DEPTH) -> Any:
        """Return `value` as JSON.

        Raises:
            BundleError: it, or something in it, is of a kind that has none; the message says what and where.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if id(value) in self._names:
            kind, name = self._names[id(value)]
            return {kind: name}
        if isinstance(value, Tensor):
            try:
                return self._tensor(value, path)
            except BundleError as error:
                raise BundleError(f"{path} is {error}") from error
        if not depth:
            raise BundleError(f"{path} lies too deep")
        return self._container(value, path, depth - 1)

    def _container(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, PackedSequence):
            return {"packed": self._items(tuple(value), path, depth)}
        if kind := _SEQUENCES.get(type(value)):
            return {kind: self._items(value, path, depth)}
        if kind := _DICTIONARIES.get(type(value)):
            pairs = value.items()
            return {
                kind: [
                    [self.encode(key, f"{path} (a key)", depth), self.encode(item, f"{path}[{key!r}]", depth)]
                    for key, item in pairs
                ]
            }
        if isinstance(value, tuple) and hasattr(type(value), "_fields"):
            owner = type(value)
            return {"named": [owner.__module__, owner.__qualname__, self._items(tuple(value), path, depth)]}
        return self._other(value, path, depth)

    def _items(self, values: Any, path: str, depth: int) -> list[Any]:
        return [self.encode(item, f"{path}[{index}]", depth) for index, item in enumerate(values)]

    def _other(self, value: Any, path: str, depth: int) -> Any:
        if type(value) is complex:
            return {"complex": self._items((value.real, value.imag), path, depth)}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_name(value)}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, torch.layout | torch.memory_format):
            return {"constant": str(value).removeprefix("torch.")}
        if isinstance(value, slice | range):
            parts = (value.start, value.stop, value.step)
            return {type(value).__name__: self._items(parts, path, depth)}
        if value is Ellipsis:
            return {"constant": "Ellipsis"}
        kind = value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
        raise BundleError(f"{path} is {kind}, which a bundle cannot hold")


class Decoder:
    """Turns what `Encoder` gave back into values.

    Args:
        tensor: gives the tensor for its reference.
        named: parameters and modules by kind and name.
        device: stands in for devices that are not there.
    """

    def __init__(
        self,
        tensor: Callable[[Any], Tensor],
        *,
        named: Mapping[tuple[str, str], nn.Module | nn.Parameter] | None = None,
        device: Callable[[str], torch.device] = torch.device,
    ) -> None:
        self._tensor, self._named, self._device = tensor, named or {}, device

    def decode(self, value: Any) -> Any:
        """Return the value.

        Raises:
            BundleError: it is none that `Encoder` writes.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if not isinstance(value, dict) or len(value) != 1:
            raise BundleError("an argument is described in a way that is not understood")
        kind, content = next(iter(value.items()))
        try:
            return self._made(kind, content)
        except (TypeError, ValueError, KeyError, RuntimeError, binascii.Error, RecursionError) as error:
            raise BundleError(f"an argument ({kind}) cannot be made again: {error}") from error

    def _made(self, kind: str, content: Any) -> Any:
        if kind == "tensor":
            return self._tensor(content)
        if kind in ("parameter", "module"):
            return self._named[kind, content]
        if kind in _MAKERS:
            return _MAKERS[kind]([self.decode(item) for item in content])
        if kind in _DICTIONARIES.values():
            made: dict[Any, Any] = OrderedDict() if kind == "ordered" else {}
            made.update((self.decode(key), self.decode(item)) for key, item in content)
            return made
        if kind == "named":
            module, name, items = content
            return _named_tuple(module, name)._make([self.decode(item) for item in items])
        if kind == "float":
            return float(content)
        if kind == "bytes":
            return base64.b64decode(content, validate=True)
        if kind == "dtype":
            return dtype_called(content)
        if kind == "device":
            return self._device(content)
        if kind == "constant":
            return Ellipsis if content == "Ellipsis" else {**_LAYOUTS, **_FORMATS}[content]
        raise BundleError(f"{kind!r} is not a kind of value")


_MAKERS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "list": list,
    "tuple": tuple,
    "size": torch.Size,
    "packed": lambda items: PackedSequence(*items),
    "complex": lambda items: complex(*items),
    "slice": lambda items: slice(*items),
    "range": lambda items: range(*items),
}


def _named_tuple(module: str, name: str) -> Any:
    """A named tuple's class, where the model's own code has it; nothing is imported for it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise BundleError(f"the named tuple {module}.{name} is not there; import it where the model is built")
    return found
