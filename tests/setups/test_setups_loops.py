"""Plain loops, accumulation, several losses and optimizers, adversaries."""

import math
from pathlib import Path

import pytest
import torch
from journals import read_journal
from reference import Scene, gradient_differences, layer, recorded
from small_training import batches, small_model
from torch import Tensor, nn
from torch.nn import functional as F

import probe


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_plain_loop_has_every_number_of_its_gradients(tmp_path: Path, given: bool, set_to_none: bool) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with scene.watch(model, optimizer if given else None):
            for inputs, targets in batches(6):
                optimizer.zero_grad(set_to_none=set_to_none)
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=6) == []


def test_plain_loop_of_large_tensors_agrees_with_gradients_recomputed_in_float64(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    twins = []
    with probe.watch(model, optimizer, spool=tmp_path, run="run"):
        for step in range(3):
            inputs = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
            twins.append(recompute_in_float64(model, inputs))
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
    journal = read_journal(tmp_path / "run")
    for frame, (gradients, loss) in zip(journal.frames, twins, strict=True):
        # float32 arithmetic of the training itself is what limits this comparison.
        assert gradient_differences(frame, journal.layouts[0], gradients, rtol=1e-4) == []
        assert frame.scalars["loss"] == pytest.approx(loss, rel=1e-5)


def recompute_in_float64(model: nn.Module, inputs: Tensor) -> tuple[dict[str, Tensor | None], float]:
    """Gradients and loss of the same step, from a float64 twin."""
    twin = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 4))
    twin.load_state_dict(model.state_dict())
    twin.double()
    loss = twin(inputs.double()).square().mean()
    gradients = torch.autograd.grad(loss, list(twin.parameters()))
    return dict(zip((name for name, _ in twin.named_parameters()), gradients, strict=True)), loss.item()


@pytest.mark.parametrize("form", ["divided", "whole", "multiplied", "mean of a list"])
def test_accumulation_is_one_step_with_summed_gradients(tmp_path: Path, form: str) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(9)):
                loss = F.cross_entropy(model(inputs), targets)
                raw = {
                    "divided": loss / 3,
                    "whole": loss,
                    "multiplied": loss * (1 / 3),
                    "mean of a list": torch.div(loss, 3),
                }[form]
                scene.backward(loss, raw=raw, samples=8)
                if index % 3 == 2:
                    scene.note(model)
                    optimizer.step()
                    optimizer.zero_grad()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


@pytest.mark.parametrize("divisor", [1, 3])
def test_accumulation_that_ends_early_is_a_step_of_fewer_micro_steps(tmp_path: Path, divisor: int) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            data = list(batches(5))
            for index, (inputs, targets) in enumerate(data):
                loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, raw=loss / divisor, samples=8)
                if index % 3 == 2 or index == len(data) - 1:
                    scene.note(model)
                    optimizer.step()
                    optimizer.zero_grad()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.differences(frames=2) == []
    assert [frame.scalars["samples"] for frame in recording.journal.frames] == [24.0, 16.0]


def test_bad_micro_batch_of_an_accumulation_is_named(tmp_path: Path) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.watch(model, optimizer, spool=tmp_path, run="run"):
        for index, (inputs, targets) in enumerate(batches(4)):
            loss = F.cross_entropy(model(inputs), targets) / 4
            (loss * math.nan if index == 2 else loss).backward()
        optimizer.step()
    event = next(e for e in read_journal(tmp_path / "run").latest_events if e.kind == "nonfinite_loss")
    assert (event.step, event.micro_step) == (0, 2)


def test_several_losses_of_one_step_are_summed(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                optimizer.zero_grad()
                output = model(inputs)
                penalty = output.square().mean()
                loss = F.cross_entropy(output, targets)
                scene.losses(loss, penalty)
                torch.autograd.backward([loss, penalty])
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_backward_of_a_vector_has_gradients_and_no_loss(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, _ in batches(3):
                optimizer.zero_grad()
                output = model(inputs)
                output.backward(torch.ones_like(output) / 8)
                scene._samples = 8
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_two_backwards_through_one_graph_are_one_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(3):
                optimizer.zero_grad()
                output = model(inputs)
                first, second = F.cross_entropy(output, targets), output.square().mean()
                scene.losses(first, second)
                first.backward(retain_graph=True)
                second.backward()
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_gradients_of_each_loss_kept_apart_and_put_together_are_one_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                output = model(inputs)
                losses, kept = [F.cross_entropy(output, targets), output.square().mean()], []
                for loss in losses:
                    optimizer.zero_grad()
                    loss.backward(retain_graph=True)
                    kept.append([parameter.grad for parameter in model.parameters()])
                for parameter, first, second in zip(model.parameters(), *kept, strict=True):
                    assert first is not None
                    assert second is not None
                    parameter.grad = first + second
                scene.losses(*losses)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_parameter_groups_with_rates_of_their_own_are_one_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        groups = [
            {"params": layer(model, 0).parameters(), "lr": 1e-3},
            {"params": layer(model, 4).parameters()},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        with scene.watch(model, optimizer):
            for index, (inputs, targets) in enumerate(batches(4)):
                if index == 2:
                    optimizer.add_param_group({"params": layer(model, 1).parameters(), "lr": 0.5})
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                # The layer that has no group yet adds up: zero_grad does not reach it.
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_two_optimizers_after_one_backward_are_two_frames_of_one_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizers = [
            torch.optim.AdamW(layer(model, 0).parameters()),
            torch.optim.SGD([*layer(model, 1).parameters(), *layer(model, 4).parameters()], lr=0.1),
        ]
        with scene.watch(model):
            for inputs, targets in batches(3):
                model.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                for optimizer in optimizers:
                    optimizer.step()
        return model

    recording = recorded(loop, tmp_path)
    assert recording.disturbances == []
    assert sorted({frame.step for frame in recording.journal.frames}) == [0, 1, 2]


def make_pair() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)),
            "judge": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)),
        }
    )


def adversaries(scene: Scene, watched: str) -> nn.Module:
    """The usual alternation: the judge on real and detached made inputs, then the generator through it."""
    pair = make_pair()
    generator, judge = pair["generator"], pair["judge"]
    optimizers = {name: torch.optim.Adam(pair[name].parameters(), betas=(0.5, 0.99)) for name in pair}
    with scene.watch(pair[watched], optimizers[watched]):
        for inputs, _ in batches(4):
            noise = torch.randn(8, 4)
            judge.zero_grad()
            made = generator(noise)
            real_score, made_score = judge(inputs), judge(made.detach())
            loss = F.softplus(-real_score).mean() + F.softplus(made_score).mean()
            # The judge is called twice: a micro-step has the batch of its first input.
            scene.backward(loss, samples=8)
            if watched == "judge":
                scene.note(judge)
            else:
                scene.forget()
            optimizers["judge"].step()
            generator.zero_grad()
            loss = F.softplus(-judge(made)).mean()
            scene.backward(loss, samples=8)
            if watched == "generator":
                scene.note(generator)
            else:
                scene.forget()
            optimizers["generator"].step()
    return pair


def test_generator_of_adversaries_has_its_own_loss_and_gradients(tmp_path: Path) -> None:
    assert recorded(lambda scene: adversaries(scene, "generator"), tmp_path).differences(frames=4) == []


def test_judge_of_adversaries_has_its_own_loss_and_gradients(tmp_path: Path) -> None:
    assert recorded(lambda scene: adversaries(scene, "judge"), tmp_path).differences(frames=4) == []


def test_adversaries_watched_as_one_are_two_frames_of_one_step(tmp_path: Path) -> None:
    class Game(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = make_pair()

    def loop(scene: Scene) -> nn.Module:
        game = Game()
        generator, judge = game.pair["generator"], game.pair["judge"]
        optimizers = [torch.optim.Adam(part.parameters()) for part in (judge, generator)]
        with scene.watch(game):
            for number, (inputs, _) in enumerate(batches(3)):
                for optimizer, part in zip(optimizers, (judge, generator), strict=True):
                    game.zero_grad()
                    made = generator(torch.randn(8, 4))
                    sign = 1 if part is judge else -1
                    loss = F.softplus(sign * judge(made)).mean() + F.softplus(-sign * judge(inputs)).mean()
                    scene.backward(loss, samples=8)
                    scene.note(game, number=number)
                    optimizer.step()
        return game

    assert recorded(loop, tmp_path).differences(frames=6) == []


def test_evaluation_between_steps_changes_no_number(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(4):
                model.eval()
                with torch.no_grad():
                    model(inputs)
                with torch.inference_mode():
                    model(inputs)
                model.train()
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=4) == []


def test_gradient_penalty_with_create_graph_is_one_step(tmp_path: Path) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, _ in batches(3):
                optimizer.zero_grad()
                inputs.requires_grad_()
                score = model(inputs).mean()
                (slope,) = torch.autograd.grad(score, inputs, create_graph=True)
                scene.backward(score + (slope.norm() - 1).square(), samples=8)
                scene.note(model)
                optimizer.step()
        return model

    assert recorded(loop, tmp_path).differences(frames=3) == []


def test_frames_of_another_loop_would_not_pass(tmp_path: Path) -> None:
    """The comparison itself can fail: one number changed is one number found."""

    def loop(scene: Scene) -> nn.Module:
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with scene.watch(model, optimizer):
            for inputs, targets in batches(2):
                optimizer.zero_grad()
                scene.backward(F.cross_entropy(model(inputs), targets), samples=8)
                scene.note(model)
                layer(model, 4).weight.grad *= 1.001
                optimizer.step()
        return model

    differences = recorded(loop, tmp_path).differences(frames=2)
    statistics = ("norm of 4.weight", "max_abs of 4.weight", "std of 4.weight", "grad_norm")
    assert [difference.rpartition(", not ")[0].rpartition(" ")[0] for difference in differences] == [
        f"step {step}: {statistic}" for step in (0, 1) for statistic in statistics
    ]
