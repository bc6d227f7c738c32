"""Random losses that are made outside of the model, and which of their ops makes the first bad gradient.

The reference computes each op's derivative by itself, from values and gradients that it keeps: it shares
neither the loss's graph nor a hook with what is tested.
"""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

SHAPE = (4, 3)
MASK = torch.tensor([[True, False, True]] * 4)
VALUES = {
    torch.float32: [0.0, 0.0, 1.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-4, 30.0, 80.0, 1e-20, 1e-38, 1e18, 1e30],
    torch.float64: [
        0.0,
        0.0,
        1.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        -3.0,
        1e-4,
        30.0,
        700.0,
        1e-160,
        1e-308,
        1e150,
        1e300,
    ],
    torch.float16: [0.0, 0.0, 1.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-4, 8.0, 10.0, 1e-6, 6e-5, 300.0, 3e4],
}
VALUES[torch.bfloat16] = VALUES[torch.float32]
FACTORS = {
    torch.float32: [1e30, 1e-30, 1e20, 1e-20, 3e38, 1e-38],
    torch.float64: [1e250, 1e-250, 1e160, 1e-160, 1e308, 1e-308],
    torch.float16: [1e4, 1e-4, 300.0, 1e-3, 6e4, 6e-5],
}
FACTORS[torch.bfloat16] = FACTORS[torch.float32]


class Own(torch.autograd.Function):
    """A healthy function of the script's own."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient * 2


class OwnRoot(torch.autograd.Function):
    """One whose derivative is infinite at zero."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.abs().sqrt()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 0.5 / x.abs().sqrt()


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "neg abs exp log log1p sqrt rsqrt reciprocal tanh sigmoid relu acos asin sin tan expm1 erf erfinv "
        "logit lgamma square atanh nan_to_num sinc"
    ).split()
} | {
    "root": lambda x: x**0.5,
    "cube": lambda x: x**3,
    "power_1.5": lambda x: x**1.5,
    "inverse": lambda x: x**-1,
    "clamp": lambda x: x.clamp(-5, 5),
    "clamp_min": lambda x: x.clamp_min(1e-8),
    "total": lambda x: x.sum(-1, keepdim=True),
    "mean": lambda x: x.mean(0, keepdim=True),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
    "norm_half": lambda x: torch.linalg.vector_norm(x, ord=0.5, dim=-1, keepdim=True),
    "std": lambda x: x.std(-1, keepdim=True),
    "var": lambda x: x.var(-1, keepdim=True),
    "product": lambda x: x.prod(-1, keepdim=True),
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "softplus": F.softplus,
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "largest": lambda x: x.amax(-1, keepdim=True),
    "row": lambda x: x[..., :1],
    "expand": lambda x: x.expand(SHAPE),
    "masked": lambda x: x.masked_fill(~MASK, 0.0),
    "half": lambda x: x.to(torch.float16),
    "brain": lambda x: x.to(torch.bfloat16),
    "distance": lambda x: F.mse_loss(x, torch.ones_like(x), reduction="none"),
    "own": Own.apply,
    "own_root": OwnRoot.apply,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in "add sub mul div pow atan2 maximum minimum hypot logaddexp xlogy".split()
} | {
    "where": lambda a, b: torch.where(MASK, a, b),
    "distance": lambda a, b: F.mse_loss(a, b, reduction="none"),
}
WITH_NUMBER: dict[str, Callable[[Tensor, float], Tensor]] = {
    "times": lambda x, c: x * c,
    "over": lambda x, c: x / c,
    "plus": lambda x, c: x + c,
    "minus": lambda x, c: x - c,
    "weighted": lambda x, c: x * _full(c, x.dtype),
    "into": lambda x, c: _full(c, x.dtype) / x,
}


def _full(number: float, dtype: torch.dtype) -> Tensor:
    return torch.full(SHAPE, min(number, torch.finfo(dtype).max), dtype=dtype)


@dataclass(frozen=True)
class Op:
    """One op of a loss: one autograd node."""

    name: str
    function: Callable[..., Tensor]
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A loss: the first value is the model's output, each op makes the next, and the last is the loss."""

    outputs: Tensor
    ops: tuple[Op, ...]

    def run(self, output: Tensor) -> Tensor:
        """Make the loss of what the model returned."""
        values = [output]
        for op in self.ops:
            values.append(op.function(*(values[position] for position in op.operands)))
        return values[-1]


def random_program(seed: int) -> Program:
    """A loss of 3 to 12 ops, of one of four types."""
    rng = random.Random(seed)
    dtype = rng.choice([torch.float32, torch.float32, *VALUES])
    few = rng.sample(VALUES[dtype], rng.randint(1, 4))
    outputs = torch.tensor([rng.choice(few) for _ in range(12)], dtype=dtype).reshape(SHAPE)
    ops: list[Op] = []
    for _ in range(rng.randint(1, 8)):
        ops.append(_random_op(rng, dtype, len(ops)))
    unused = set(range(len(ops) + 1)) - {position for op in ops for position in op.operands}
    terms = []
    for position in sorted(unused):
        name, total = rng.choice([("mean", torch.mean), ("sum", torch.sum)])
        ops.append(Op(name, total, (position,)))
        terms.append(len(ops))
    while len(terms) > 1:
        ops.append(Op("add", torch.add, (terms.pop(), terms.pop())))
        terms.append(len(ops))
    if rng.random() < 0.2:
        number = rng.choice([0.25, 4096.0, *FACTORS[dtype]])
        ops.append(Op(f"times {number}", functools.partial(torch.mul, other=number), (len(ops),)))
    return Program(outputs, tuple(ops))


def _random_op(rng: random.Random, dtype: torch.dtype, newest: int) -> Op:
    def operand() -> int:
        return newest if rng.random() < 0.7 else rng.randint(0, newest)

    kind, numbers = rng.random(), VALUES[dtype]
    if kind < 0.6:
        name = rng.choice(sorted(UNARY))
        return Op(name, UNARY[name], (operand(),))
    if kind < 0.8:
        name, number = rng.choice(sorted(WITH_NUMBER)), rng.choice([*numbers, *FACTORS[dtype]])
        function = WITH_NUMBER[name]
        return Op(f"{name} {number}", lambda x: function(x, number), (operand(),))
    name = rng.choice(sorted(BINARY))
    return Op(name, BINARY[name], (operand(), operand()))


@dataclass(frozen=True)
class Truth:
    """What happens in the forward and in the backward of a loss."""

    loss: float
    bad_gradient: bool
    """Whether what the model's output receives is NaN or infinite."""
    forward: tuple[str, ...]
    """Nodes that make a bad value of good ones which reaches the loss, in the order of time."""
    aside: tuple[str, ...]
    """Nodes that make a bad value of good ones anywhere, though a finite loss may come of it."""
    backward: tuple[str | None, ...]
    """Nodes that make a bad gradient of a good one which reaches the output, in their order; None where the
    sum of good gradients is bad."""


def truth_of(program: Program) -> Truth:
    """Compute each op, and each derivative, by itself."""
    values, nodes = [program.outputs], [""]
    alone: list[tuple[Tensor, list[Tensor]]] = [(program.outputs, [])]
    for op in program.ops:
        leaves = [values[position].clone().requires_grad_() for position in op.operands]
        made = op.function(*leaves)
        nodes.append("" if made.grad_fn is None else made.grad_fn.name())
        alone.append((made, leaves))
        values.append(made.detach())
    bad, makers = _send_back(program, alone)
    return Truth(
        loss=float(values[-1]),
        bad_gradient=bad,
        forward=tuple(nodes[k] for k in _forward_makers(program, values, [len(values) - 1])),
        aside=tuple(nodes[k] for k in _forward_makers(program, values, [*range(len(values))])),
        backward=tuple(nodes[int(k)] if k.is_integer() else None for k in makers),
    )


def _send_back(
    program: Program, alone: Sequence[tuple[Tensor, Sequence[Tensor]]]
) -> tuple[bool, list[float]]:
    """Return whether the output's gradient is bad, and which values' ops made it so, in their order.

    What sums up the gradient of a value comes half a place before that value's op.
    """
    gradients: dict[int, Tensor] = {len(program.ops): torch.ones_like(alone[-1][0])}
    makers: dict[int, set[float]] = {}
    for position in range(len(program.ops), 0, -1):
        incoming = gradients.get(position)
        if incoming is None:
            continue
        made, leaves = alone[position]
        sent = torch.autograd.grad(made, leaves, incoming, allow_unused=True)
        for target, gradient in zip(program.ops[position - 1].operands, sent, strict=True):
            if gradient is None:
                continue
            before = gradients.get(target)
            gradients[target] = total = gradient if before is None else before + gradient
            known = makers.setdefault(target, set())
            if not finite(gradient):
                known |= {float(position)} if finite(incoming) else makers[position]
            elif before is not None and finite(before) and not finite(total):
                known.add(target + 0.5)
    bad = 0 in gradients and not finite(gradients[0])
    return bad, sorted(makers.get(0, ()), reverse=True)


def _forward_makers(program: Program, values: list[Tensor], ends: list[int]) -> list[int]:
    reached: set[int] = set()
    pending = [*ends]
    while pending:
        position = pending.pop()
        if position and position not in reached and not finite(values[position]):
            reached.add(position)
            pending += program.ops[position - 1].operands
    return [k for k in sorted(reached) if all(finite(values[p]) for p in program.ops[k - 1].operands)]


def finite(tensor: Tensor) -> bool:
    """Whether no element is NaN or infinite."""
    return bool(torch.isfinite(tensor).all())
