"""The captured forward calls of a step, into a bundle and back.

How a loss was made of the outputs is not written: the script's own code made it, and does not run again. What
the run found out about it is taken from the event.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...compat.torch_memory import version
from ...errors import BundleError, ReplayError
from ..arguments import HeldArguments
from ..capture import CallState, OutputGradients, RootCapture
from ..held_outputs import HeldOutput, held_values
from ..loss.loss_origin import LossFinding
from ..module_state import StateCopy
from .packer import TensorPacker, dtype_name
from .schema import Attribute, Batch, Call, Pass
from .unpacker import TensorReader, dtype_called
from .values import Decoder, Encoder


class CallPacker:
    """Describes calls.

    Args:
        modules: names in the bundle's model, by identity.
        parameters: likewise.
        packer: gets the tensors.
        with_outputs: whether the outputs go in, by which a replay is judged, and their gradients.
    """

    def __init__(
        self,
        modules: Mapping[int, str],
        parameters: Mapping[int, str],
        packer: TensorPacker,
        *,
        with_outputs: bool,
    ) -> None:
        self._modules, self._packer, self._with_outputs = modules, packer, with_outputs
        self._names = {key: ("module", name) for key, name in modules.items()}
        self._names |= {key: ("parameter", name) for key, name in parameters.items()}

    def pack(self, capture: RootCapture, number: int) -> Call:
        """Describe one call.

        Raises:
            BundleError: something in it cannot be written, or was changed since.
        """
        if capture.declined or capture.arguments is None or capture.state is None:
            raise BundleError(capture.declined or "a forward did not finish")
        place, state = f"calls/{number}", capture.state
        try:
            args, kwargs, tensors = capture.arguments.again()
            root = self._modules[id(capture.root)]
        except ReplayError as error:
            raise BundleError(str(error)) from error
        encoder = Encoder(self._reference(place), names=self._names)
        held = {name: capture.arguments.tensor(name) for name in tensors}
        return Call(
            root=root,
            args=encoder.encode(args, "args"),
            kwargs=encoder.encode(kwargs, "kwargs"),
            computed=[name for name, tensor in held.items() if tensor is not None and tensor.is_computed],
            rng_cpu=self._packer.add(state.rng_cpu, f"{place}/rng_cpu"),
            rng_cuda=self._cuda_generator(state, place),
            rng_python=encoder.encode(state.rng_python, "the state of random"),
            rng_numpy=_numpy_as_values(state.rng_numpy),
            autocast=[(kind, dtype_name(dtype)) for kind, dtype in state.autocast],
            autocast_cache=state.autocast_cache,
            training=state.training,
            state=[self._state(copy, encoder) for copy in capture.state_copies],
            output_count=capture.output_count,
            outputs=self._outputs(capture, place),
            passes=self._passes(capture, place),
            loss_is_closed=capture.loss_graph.is_closed,
            order=capture.order,
            backwards=capture.backwards,
        )

    def pack_batch(self, held: HeldArguments, *, step: int, number: int) -> Batch:
        """Describe what an earlier step called a module with.

        Raises:
            BundleError: something in it cannot be written.
            ReplayError: it was changed since.
        """
        args, kwargs, _ = held.again()
        encoder = Encoder(self._reference(f"batches/{step}/{number}"), names=self._names)
        return Batch(step=step, args=encoder.encode(args, "args"), kwargs=encoder.encode(kwargs, "kwargs"))

    def encoder(self, place: str) -> Encoder:
        """Return what describes other values of the step; their tensors are labelled by `place`."""
        return Encoder(self._reference(place), names=self._names)

    def _reference(self, place: str) -> Callable[[Tensor, str], Any]:
        def refer(tensor: Tensor, path: str) -> Any:
            index = self._packer.add(tensor, f"{place}/{path}")
            return {"tensor": {"index": index, "requires_grad": tensor.requires_grad}}

        return refer

    def _cuda_generator(self, state: CallState, place: str) -> tuple[int, int] | None:
        if state.rng_cuda is None:
            return None
        device, generator = state.rng_cuda
        return device, self._packer.add(generator, f"{place}/rng_cuda")

    def _state(self, copy: StateCopy, encoder: Encoder) -> Attribute:
        module = copy.module()
        name = None if module is None else self._modules.get(id(module))
        if name is None:
            raise BundleError(f"the module whose {copy.name} the forward changes is gone")
        value = encoder.encode(copy.value, f"state/{name}.{copy.name}")
        return Attribute(module=name, name=copy.name, value=value)

    def _outputs(self, capture: RootCapture, place: str) -> list[int | None]:
        found: list[int | None] = []
        for position, held in enumerate(capture.outputs):
            tensor = held_values(held) if self._with_outputs else None
            label = f"{place}/outputs/{position}"
            found.append(None if tensor is None else self._packer.add(tensor, label))
        return found

    def _passes(self, capture: RootCapture, place: str) -> list[Pass]:
        passes = capture.passes if self._with_outputs else ()
        return [self._backward(back, f"{place}/backward/{number}") for number, back in enumerate(passes)]

    def _backward(self, back: OutputGradients, place: str) -> Pass:
        gradients = [
            (position, self._packer.add(tensor, f"{place}/{position}"))
            for position, tensor in back.by_output.items()
        ]
        return Pass(task=back.task, order=back.order, gradients=gradients)


def unpack_call(
    call: Call,
    modules: Mapping[str, nn.Module],
    tensors: TensorReader,
    decoder: Decoder,
    *,
    loss_op: str | None,
) -> RootCapture:
    """Return a call as it was captured, of another process's module.

    Args:
        call: the description.
        modules: of the model that has been given the step's state, by name.
        tensors: of the bundle.
        decoder: of the arguments.
        loss_op: what went wrong in the loss, which the run knew.

    Raises:
        BundleError: the description is not one that can be followed.
    """
    try:
        root = modules[call.root]
        args, kwargs = decoder.decode(call.args), decoder.decode(call.kwargs)
        capture = RootCapture(root, size_cap_bytes=0, parameter_stamp=None)
        capture.arguments = arguments = HeldArguments(tuple(args), kwargs)
        for name in call.computed:
            if (held := arguments.tensor(name)) is not None:
                held.is_computed = True
        capture.state = _call_state(call, tensors, decoder)
        capture.state_copies = [_state_copy(item, modules, decoder) for item in call.state]
    except (KeyError, TypeError, ValueError, ReplayError) as error:
        raise BundleError(f"a call of {call.root or 'the model'} cannot be made again: {error}") from error
    capture.output_count = call.output_count
    capture.outputs = [_output(index, tensors) for index in call.outputs]
    capture.passes = [_pass(described, tensors) for described in call.passes]
    capture.loss_finding = LossFinding(
        op=loss_op, is_proven=loss_op is not None, is_closed=call.loss_is_closed
    )
    capture.order = call.order
    capture.backwards = call.backwards
    return capture


def referred(tensors: TensorReader) -> Callable[[Any], Tensor]:
    """Return what gives a `Decoder` its tensors."""

    def find(reference: Any) -> Tensor:
        if isinstance(reference, int):
            return tensors.get(reference)
        return tensors.get(reference["index"]).detach().requires_grad_(bool(reference["requires_grad"]))

    return find


def _call_state(call: Call, tensors: TensorReader, decoder: Decoder) -> CallState:
    rng_cuda = None
    if call.rng_cuda is not None and call.rng_cuda[0] < torch.cuda.device_count():
        rng_cuda = call.rng_cuda[0], tensors.get(call.rng_cuda[1])
    on_cpu = "cuda" in " ".join(tensors.replaced_devices)
    autocast = [("cpu" if on_cpu else kind, dtype_called(name)) for kind, name in call.autocast]
    return CallState(
        rng_cpu=tensors.get(call.rng_cpu),
        rng_cuda=rng_cuda,
        rng_python=decoder.decode(call.rng_python),
        rng_numpy=None if call.rng_numpy is None else tuple(call.rng_numpy),
        autocast=tuple(dict(autocast).items()),
        autocast_cache=call.autocast_cache,
        training=call.training,
    )


def _numpy_as_values(state: Any) -> list[Any] | None:
    return None if state is None else [state[0], [int(word) for word in state[1]], *state[2:]]


def _state_copy(item: Attribute, modules: Mapping[str, nn.Module], decoder: Decoder) -> StateCopy:
    return StateCopy(weakref.ref(modules[item.module]), item.name, decoder.decode(item.value))


def _output(index: int | None, tensors: TensorReader) -> HeldOutput:
    if index is None:
        gone = torch.empty(0)
        return weakref.ref(gone), 0, None
    tensor = tensors.get(index)
    return tensor, version(tensor), None


def _pass(described: Pass, tensors: TensorReader) -> OutputGradients:
    made = OutputGradients(described.task)
    made.order = described.order
    made.by_output = {position: tensors.get(index) for position, index in described.gradients}
    return made
