"""`probe.aio`: the loop goes on, the results are the same, and what is not safe is noticed."""

import asyncio
import threading
import time
from collections.abc import Awaitable
from typing import Any

import pytest
import torch
from planted_models import backward, chain
from torch import Tensor, nn

import probe
from probe.actions import aio


async def with_ticks(work: Awaitable[Any]) -> tuple[Any, int]:
    """Await `work` while another coroutine counts how often the loop comes round."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    counter = asyncio.create_task(tick())
    try:
        return await work, ticks
    finally:
        counter.cancel()


class Slow(nn.Module):
    """Its forward waits until the event loop has come round often enough, or gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.rounds = threading.Semaphore(0)

    def forward(self, x: Tensor) -> Tensor:
        went_on = all(self.rounds.acquire(timeout=5) for _ in range(20))
        assert went_on, "the event loop stood still"
        return self.linear(x)


def test_loop_goes_on_while_a_forward_runs() -> None:
    model = Slow()

    async def main() -> Any:
        async def rounds() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
                model.rounds.release()

        report, _ = await asyncio.gather(aio.debug_forward_pass(model, torch.ones(2, 3)), rounds())
        return report

    assert asyncio.run(main()).output.shape == (2, 1)


def test_plain_call_would_have_stopped_the_loop() -> None:
    model = Slow()

    async def main() -> None:
        async def rounds() -> None:
            for _ in range(20):
                await asyncio.sleep(0)
                model.rounds.release()

        async def blocking() -> None:
            model.rounds.acquire = lambda timeout: threading.Semaphore.acquire(  # type: ignore[method-assign]
                model.rounds, timeout=0.05
            )
            probe.debug_forward_pass(model, torch.ones(2, 3))

        await asyncio.gather(blocking(), rounds())

    with pytest.raises(AssertionError, match="stood still"):
        asyncio.run(main())


def test_reading_calls_give_the_same_as_plain_ones() -> None:
    torch.manual_seed(0)
    model = chain(6, 8, 2)
    backward(model, torch.randn(4, 6))

    async def main() -> list[Any]:
        return list(
            await asyncio.gather(
                aio.analyze_tensor(model[0].weight, "w"),
                aio.check_gradients(model, 5.0),
                aio.check_gradient_explosion(model, threshold=1e-3),
                aio.check_gradient_vanishing(model),
                aio.analyze_gradient_flow(model),
                aio.check_model_parameters(model),
            )
        )

    expected = [
        probe.analyze_tensor(model[0].weight, "w"),
        probe.check_gradients(model, 5.0),
        probe.check_gradient_explosion(model, threshold=1e-3),
        probe.check_gradient_vanishing(model),
        probe.analyze_gradient_flow(model),
        probe.check_model_parameters(model),
    ]
    assert [result.to_dict() for result in asyncio.run(main())] == [result.to_dict() for result in expected]


def test_async_training_gives_the_same_bits_as_a_plain_one() -> None:
    torch.manual_seed(0)
    inputs, targets = torch.randn(16, 6), torch.randint(2, (16,))

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 2))
        return model, torch.optim.AdamW(model.parameters())

    async def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(4):
            report = await aio.debug_training_step(
                model, inputs, targets, nn.functional.cross_entropy, optimizer
            )
            await aio.monitor_training_step(model, report.loss, step)

    (one, its_optimizer), (other, other_optimizer) = make(), make()
    torch.manual_seed(2)
    asyncio.run(train(one, its_optimizer))
    torch.manual_seed(2)
    for _ in range(4):
        other_optimizer.zero_grad()
        nn.functional.cross_entropy(other(inputs), targets).backward()
        other_optimizer.step()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_worker_thread_has_the_callers_torch_settings() -> None:
    seen: dict[str, object] = {}

    class Spy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen["thread"] = threading.get_ident()
            seen["grad"] = torch.is_grad_enabled()
            seen["autocast"] = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            return super().forward(x)

    async def main() -> None:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            report = await aio.debug_forward_pass(Spy(3, 2), torch.ones(1, 3))
        assert report.output.dtype is torch.bfloat16 and not report.output.requires_grad

    asyncio.run(main())
    assert seen["thread"] != threading.get_ident()
    assert seen["grad"] is False and seen["autocast"] == (True, torch.bfloat16)


def test_tensor_changed_while_it_is_read_is_noticed() -> None:
    class Hesitant(nn.Module):
        """Waits in the middle of the reading, until the loop has written."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.reading, self.written = threading.Event(), threading.Event()

        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                self.reading.set()
                assert self.written.wait(5)
            return super().named_modules(*args, **kwargs)

    model = Hesitant()
    model.weight.grad = torch.ones(3)

    async def write() -> None:
        while not model.reading.is_set():
            await asyncio.sleep(0.001)
        model.weight.grad.add_(1)
        model.written.set()

    async def main() -> None:
        await asyncio.gather(aio.check_gradients(model), write())

    with pytest.raises(ValueError, match="gradient of weight was changed while check_gradients was reading"):
        asyncio.run(main())


def test_calls_that_run_the_model_run_one_at_a_time() -> None:
    running, most = 0, 0

    class Counting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            nonlocal running, most
            running += 1
            most = max(most, running)
            time.sleep(0.01)
            running -= 1
            return super().forward(x)

    model = Counting(2, 2)

    async def main() -> None:
        await asyncio.gather(*(aio.debug_forward_pass(model, torch.ones(1, 2)) for _ in range(5)))

    asyncio.run(main())
    assert most == 1


def test_errors_reach_the_awaiting_coroutine() -> None:
    async def main() -> None:
        await aio.check_gradients(chain(2, 2, 2))

    with pytest.raises(ValueError, match="no parameter of Sequential has a gradient"):
        asyncio.run(main())
