"""What a model holds, into a bundle and back: parameters, ties, buffers, flags and numbers of its modules.

Loading is strict by names and shapes: another model than the step's could reproduce nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from torch import Tensor, nn

from ...attach.layout import clean_name
from ...compat.torch_modules import is_persistent, own_buffers
from ...errors import BundleError
from .packer import ATTRIBUTES, BUFFERS, PARAMETERS, TensorPacker
from .schema import Attribute, Buffer, Model, Parameter
from .unpacker import TensorReader
from .values import Decoder, Encoder

_OWN: Final = frozenset(nn.Module().__dict__) - {"training"}
_SHOWN_NAMES: Final = 8


def describe_model(top: nn.Module, naming_root: str, packer: TensorPacker, *, with_tensors: bool) -> Model:
    """Take the model's state in.

    Args:
        top: what `--entry` has to build.
        naming_root: name of the watched model in it.
        packer: gets the tensors.
        with_tensors: whether attributes that are tensors go in, which may hold data.

    Raises:
        BundleError: a parameter or buffer is of a kind that cannot be written.
    """
    first: dict[int, str] = {}
    parameters: list[Parameter] = []
    ties: dict[str, str] = {}
    for name, parameter in _named_parameters(top):
        if id(parameter) in first:
            ties[name] = first[id(parameter)]
            continue
        first[id(parameter)] = name
        index = _added(packer, parameter, f"{PARAMETERS}{name}")
        parameters.append(Parameter(name=name, tensor=index, requires_grad=parameter.requires_grad))
    buffers = [
        Buffer(name=name, tensor=_added(packer, buffer, f"{BUFFERS}{name}"), is_persistent=persistent)
        for name, buffer, persistent in _named_buffers(top)
    ]
    return Model(
        type=f"{type(top).__module__}.{type(top).__qualname__}",
        naming_root=naming_root,
        parameters=parameters,
        ties=ties,
        buffers=buffers,
        attributes=list(_attributes(top, packer, with_tensors=with_tensors)),
    )


def describe_without_state(top: nn.Module, naming_root: str) -> Model:
    """The same of a model whose state is too large to be taken in: which one it is."""
    kind = f"{type(top).__module__}.{type(top).__qualname__}"
    return Model(type=kind, naming_root=naming_root, parameters=[], ties={}, buffers=[], attributes=[])


def named_modules(top: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every module by each of its names, without what wrappers add."""
    for name, module in top.named_modules(remove_duplicate=False):
        yield clean_name(name), module


def load_model(top: nn.Module, record: Model, tensors: TensorReader, decoder: Decoder) -> list[str]:
    """Give a model the state of the step; return in words what is worth knowing.

    Raises:
        BundleError: it is another model; the message lists what is missing, left over, or of another shape.
    """
    _require_fit(top, record, tensors)
    parameters = dict(_named_parameters(top))
    for described in record.parameters:
        parameter = parameters[described.name]
        parameter.data = tensors.get(described.tensor)
        parameter.requires_grad_(described.requires_grad)
        parameter.grad = None
    modules = dict(named_modules(top))
    notes = _load_buffers(modules, record, tensors)
    for attribute in record.attributes:
        module = modules.get(attribute.module)
        if module is not None and attribute.name not in _OWN:
            module.__dict__[attribute.name] = decoder.decode(attribute.value)
    return notes


def _load_buffers(modules: Mapping[str, nn.Module], record: Model, tensors: TensorReader) -> list[str]:
    notes = []
    for buffer in record.buffers:
        path, _, name = buffer.name.rpartition(".")
        module = modules.get(path)
        if module is None:
            raise BundleError(f"the model has no module {path!r} for the buffer {buffer.name}")
        if own_buffers(module).get(name) is None:
            notes.append(f"the buffer {buffer.name} was added: the model got it only during the run")
            if name in module.__dict__:
                del module.__dict__[name]
            module.register_buffer(name, None, persistent=buffer.is_persistent)
        own_buffers(module)[name] = tensors.get(buffer.tensor)
    return notes


def _named_parameters(top: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in top.named_parameters(remove_duplicate=False):
        yield clean_name(name), parameter


def _named_buffers(top: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    for path, module in named_modules(top):
        for name, buffer in own_buffers(module).items():
            if buffer is not None:
                full_name = f"{path}.{name}" if path else name
                yield full_name, buffer, is_persistent(module, name)


def _added(packer: TensorPacker, tensor: Tensor, label: str) -> int:
    try:
        return packer.add(tensor, label)
    except BundleError as error:
        raise BundleError(f"{label} is {error}") from error


def _attributes(top: nn.Module, packer: TensorPacker, *, with_tensors: bool) -> Iterator[Attribute]:
    """Numbers and flags of every module, and tensors that are not computed by a graph."""
    encoder = Encoder(lambda tensor, path: {"tensor": packer.add(tensor, path)})
    for path, module in top.named_modules():
        name_of_module = clean_name(path)
        for name, value in module.__dict__.items():
            is_tensor = with_tensors and type(value) is Tensor and value.grad_fn is None
            if name in _OWN or not (is_tensor or type(value) in (bool, int, float)):
                continue
            try:
                encoded = encoder.encode(value, f"{ATTRIBUTES}{name_of_module}.{name}")
            except BundleError:
                # The model that `--entry` builds has one of its own.
                continue
            yield Attribute(module=name_of_module, name=name, value=encoded)


def _require_fit(top: nn.Module, record: Model, tensors: TensorReader) -> None:
    found = dict(_named_parameters(top))
    wanted = {parameter.name: parameter for parameter in record.parameters}
    names = set(wanted) | set(record.ties)
    problems = [
        *_listed("the model lacks", sorted(names - set(found))),
        *_listed("the bundle lacks", sorted(set(found) - names)),
    ]
    shapes = [
        f"{name} is {list(found[name].shape)}, in the run {list(tensors.get(wanted[name].tensor).shape)}"
        for name in wanted
        if name in found and found[name].shape != tensors.get(wanted[name].tensor).shape
    ]
    buffers = {name: buffer for name, buffer, _ in _named_buffers(top)}
    shapes += [
        f"{buffer.name} is {list(own.shape)}, in the run {list(tensors.get(buffer.tensor).shape)}"
        for buffer in record.buffers
        if buffer.is_persistent and (own := buffers.get(buffer.name)) is not None
        if own.shape != tensors.get(buffer.tensor).shape
    ]
    problems += _listed("other shapes:", shapes)
    if not problems:
        untied = [name for name, other in record.ties.items() if found[name] is not found.get(other)]
        tied = len({id(parameter) for parameter in found.values()}) != len(wanted)
        problems += _listed("not the same tensor as another one, as they were in the run:", untied)
        problems += ["parameters share a tensor that did not in the run"] if tied and not untied else []
    if problems:
        built = f"{type(top).__module__}.{type(top).__qualname__}"
        raise BundleError(
            f"the model of --entry is not the one of the step: {'; '.join(problems)}. The step's was a "
            f"{record.type}, this is a {built}"
        )


def _listed(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return [f"{what} {', '.join(names[:_SHOWN_NAMES])}{more}"]
