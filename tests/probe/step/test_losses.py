"""`LossMeter`: what is undone of a loss, and what is left as it is."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probe.step.losses import LossMeter, LossSite


def leaf() -> Tensor:
    return torch.full((), 3.0, requires_grad=True) * 1


def value_of(meter: LossMeter, *losses: Tensor) -> float | None:
    for loss in losses:
        meter.add(loss, None)
    value = meter.read().value
    meter.reset()
    return value


@pytest.mark.parametrize(
    "divided",
    [
        lambda loss: loss / 4,
        lambda loss: loss * 0.25,
        lambda loss: torch.tensor(0.25) * loss,
        lambda loss: torch.div(loss, torch.tensor(4.0)),
        lambda loss: (loss / 4).clone(),
        lambda loss: loss / 3 / 4 + loss * 2 / 3 / 4,
    ],
)
def test_division_by_the_number_of_micro_steps_is_undone(divided) -> None:  # type: ignore[no-untyped-def]
    assert value_of(LossMeter(), *[divided(leaf()) for _ in range(4)]) == pytest.approx(3)


def test_division_known_from_a_step_before_is_undone_in_a_shorter_one() -> None:
    meter = LossMeter()
    value_of(meter, *[leaf() / 4 for _ in range(4)])
    assert value_of(meter, leaf() / 4, leaf() / 4) == pytest.approx(3)


@pytest.mark.parametrize("factor", [0.0, math.inf, math.nan, -0.5, 2.0])
def test_factor_that_is_no_accumulation_is_kept(factor: float) -> None:
    found = value_of(LossMeter(), leaf() * factor, leaf() * factor)
    assert found == pytest.approx(3.0 * factor, nan_ok=True)


def test_division_by_something_that_needs_a_gradient_is_kept() -> None:
    assert value_of(LossMeter(), leaf() / leaf(), leaf() / leaf()) == pytest.approx(1)


def test_loss_whose_graph_is_freed_is_taken_without_an_error() -> None:
    loss = leaf() / 2
    loss.backward()
    assert value_of(LossMeter(), loss) == 1.5


def test_scaled_losses_of_a_list_are_unscaled_and_the_scaler_is_noted() -> None:
    meter, losses = LossMeter(), [leaf() / 2, leaf() / 2]
    scaled = [loss * 1024 for loss in losses]
    meter.note_scaling(losses, scaled)
    meter.add(scaled, None)
    assert meter.was_scaled
    assert (meter.read().value, meter.read().raw) == (3.0, 3072.0)


def test_scaler_that_returns_the_loss_itself_scales_nothing() -> None:
    meter, loss = LossMeter(), leaf()
    meter.note_scaling(loss, loss)
    assert value_of(meter, loss) == 3.0
    assert not meter.was_scaled


def test_scalars_are_known_to_be_finite_since_a_backward() -> None:
    meter = LossMeter()
    meter.add(torch.tensor(math.nan), None)
    assert not meter.are_finite(since=0)
    meter.add([torch.tensor(1.0), torch.tensor(2.0)], None)
    assert meter.are_finite(since=1)
    assert not meter.are_finite(since=0)
    meter.add([torch.tensor(math.inf), torch.tensor(2.0)], None)
    assert not meter.are_finite(since=3)
    assert meter.are_finite(since=4)


def test_a_loss_with_a_gradient_of_its_own_is_not_known_to_be_finite() -> None:
    meter = LossMeter()
    meter.add(torch.tensor(math.nan), torch.tensor(1.0))
    assert not meter.are_finite(since=0)


def test_scalars_on_a_device_are_not_known_to_be_finite() -> None:
    meter = LossMeter()
    meter.add(torch.zeros((), device="meta"), None)
    assert not meter.are_finite(since=0)


def read(losses: list[Tensor], *, sites: str = "", forwards: int = 0) -> float | None:
    meter = LossMeter()
    for loss, site in zip(losses, sites or "a" * len(losses), strict=True):
        meter.add(loss, None, LossSite(None if site == "?" else site, is_reduced=site.isupper()))
    return meter.read(forwards=forwards).value


def test_micro_steps_that_are_not_divided_give_their_mean() -> None:
    assert read([leaf(), leaf() * 2, leaf() * 3]) == pytest.approx(6)


def test_losses_of_other_graphs_are_added() -> None:
    assert read([F.mse_loss(leaf(), torch.zeros(())), leaf().exp().log()]) == pytest.approx(12)


def test_losses_of_two_lines_are_added_and_each_is_averaged() -> None:
    assert read([leaf(), leaf() * 5, leaf(), leaf() * 5], sites="abab") == pytest.approx(3 + 15)


def test_one_accumulation_from_two_lines_is_one() -> None:
    assert read([leaf() / 3, leaf() / 3, leaf() / 3], sites="aab") == pytest.approx(3)


@pytest.mark.parametrize("sites", ["aaB", "aB", "?a", "a?a", "a?b"])
def test_lines_of_no_sync_and_of_two_passes_tell_nothing_apart(sites: str) -> None:
    """One micro-step is averaged over the ranks, or parameters were changed before it."""
    assert read([leaf() for _ in sites], sites=sites) == pytest.approx(3)


def test_losses_of_two_lines_are_added_where_both_are_averaged_over_the_ranks() -> None:
    assert read([leaf(), leaf() * 5], sites="AB") == pytest.approx(3 + 15)


def test_losses_of_several_heads_of_one_forward_are_added() -> None:
    assert read([leaf(), leaf(), leaf()], forwards=1) == pytest.approx(9)
    assert read([leaf() / 2 for _ in range(6)], forwards=2) == pytest.approx(9)


def sums_over_items(reduction: str) -> tuple[list[Tensor], Tensor]:
    """Unequal micro-steps of scores and targets, some of them ignored: sums of losses and count of items."""
    torch.manual_seed(0)
    sums, items = [], torch.tensor(0)
    for length in (3, 9, 6):
        scores = torch.randn(length, 5, requires_grad=True)
        targets = torch.randint(5, (length,))
        targets[0] = -100
        if reduction == "nll":
            sums.append(F.cross_entropy(scores, targets, reduction="sum"))
        elif reduction == "sum":
            sums.append(F.cross_entropy(scores, targets, reduction="none").sum())
        else:
            sums.append(F.mse_loss(scores, torch.zeros(length, 5), reduction="sum"))
        items = items + (targets != -100).sum() * (5 if reduction == "mse" else 1)
    return sums, items


@pytest.mark.parametrize("reduction", ["nll", "sum", "mse"])
@pytest.mark.parametrize("auxiliary", [0.0, 1e-3])
def test_division_by_the_items_of_all_micro_steps_gives_the_sum(reduction: str, auxiliary: float) -> None:
    sums, items = sums_over_items(reduction)
    losses = [one / items for one in sums]
    if auxiliary:
        losses = [one + auxiliary * leaf().exp() for one in losses]
    assert read(losses) == pytest.approx(sum(loss.item() for loss in losses))


@pytest.mark.parametrize("reduction", ["nll", "sum", "mse"])
def test_division_by_the_items_of_each_micro_step_gives_the_mean(reduction: str) -> None:
    sums, _ = sums_over_items(reduction)
    losses = [one / count for one, count in zip(sums, (3, 9, 6), strict=True)]
    if reduction == "mse":
        losses = [loss / 5 for loss in losses]
    assert read(losses) == pytest.approx(sum(loss.item() for loss in losses) / 3)


@pytest.mark.parametrize("is_shared", [True, False])
def test_items_on_a_device_are_known_by_the_tensor_alone(is_shared: bool) -> None:
    scores = torch.zeros(4, 5, device="meta", requires_grad=True)
    shared = torch.zeros((), device="meta")
    targets = torch.zeros(4, dtype=torch.long, device="meta")

    def loss() -> Tensor:
        divisor = shared if is_shared else torch.zeros((), device="meta")
        return F.cross_entropy(scores, targets, reduction="sum") / divisor

    meter = LossMeter()
    for _ in range(3):
        meter.add(loss(), None)
    ((members, factor, micro_steps),) = meter._parts(3)
    assert (members, factor, micro_steps) == ([0, 1, 2], 1.0, 1 if is_shared else 3)


def test_saved_operands_that_a_hook_took_away_are_not_asked_for() -> None:
    def refuse(_: object) -> Tensor:
        raise AssertionError("unpacked")

    model = nn.Linear(4, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, refuse):
        loss = F.mse_loss(model(torch.ones(3, 4)), torch.zeros(3, 2), reduction="sum")
    assert read([loss * 0.3, loss * 0.3]) == pytest.approx(loss.item() * 0.3)
