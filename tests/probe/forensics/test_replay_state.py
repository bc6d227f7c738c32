"""After a replay the training state is bit for bit what it was, and nothing hangs on the model."""

import copy
import ctypes
import io
import random

import numpy as np
import pytest
import torch
from replayed_step import CapturedStep, Lambda, around, batch, run_step
from torch import nn

from probe.forensics.replay import locate_origin
from probe.threads.unnoticed import is_replaying

torch.set_num_threads(1)


def _model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), Lambda(lambda x: torch.sqrt((x - x) * x) + x)
    )


def _state(model):
    """Everything that training could notice, as bytes and identities."""
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    return (
        [tensor.numpy().tobytes() for tensor in tensors],
        [id(tensor) for tensor in (*model.parameters(), *model.buffers())],
        [tensor._version for tensor in (*model.parameters(), *model.buffers())],
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        [module.training for module in model.modules()],
    )


def test_replay_leaves_the_training_state_bit_identical():
    model = _model()
    step = run_step(model, batch())
    before = _state(model)
    assert step.replay().origin is not None
    assert _state(model) == before


def test_replay_keeps_the_gradient_objects():
    model = _model()
    step = run_step(model, batch())
    before = [parameter.grad for parameter in model.parameters()]
    step.replay()
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), before, strict=True))


def test_training_with_replays_ends_in_the_same_weights():
    def train(*, replay):
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        torch.manual_seed(5)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            step = run_step(model, batch(), loss=lambda y: (y**2).mean())
            if replay:
                assert step.replay().fidelity == "exact"
            optimizer.step()
            optimizer.zero_grad()
        return [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]

    assert train(replay=True) == train(replay=False)


def test_capturing_alone_changes_no_gradient():
    plain, captured = _model(), _model()
    torch.manual_seed(9)
    plain(batch()).mean().backward()
    torch.manual_seed(9)
    run_step(captured, batch())
    pairs = zip(plain.parameters(), captured.parameters(), strict=True)
    assert all(a.grad.numpy().tobytes() == b.grad.numpy().tobytes() for a, b in pairs)


def test_lists_and_counters_on_the_model_are_put_back():
    model = _model()
    model.history, model.count = [], 0

    def note(module, arguments):
        model.history.append(1)
        model.count += 1

    handle = model[0].register_forward_pre_hook(note)
    step = run_step(model, batch())
    step.replay()
    handle.remove()
    assert (model.history, model.count) == ([1], 1)


def test_optimizer_in_backward_does_not_step_during_a_replay():
    model = _model()
    steps = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(steps.append)
    step = run_step(model, batch())
    before = len(steps)
    step.replay()
    assert len(steps) == before


def test_backward_of_another_live_graph_still_works_after_a_replay():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    model.eval()
    other = model(batch()).sum()
    run_step(model, batch()).replay()
    other.backward()
    assert model[0].weight.grad is not None


def test_model_is_copied_and_saved_clean_after_a_replay():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    step = run_step(model, batch())
    step.replay()
    copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    assert b"probe" not in file.getvalue()


def test_module_calls_are_torchs_own_again_after_a_replay():
    before = nn.Module._call_impl
    run_step(_model(), batch()).replay()
    assert nn.Module._call_impl is before


def test_replaying_is_known_inside_and_over_afterwards():
    seen = (ctypes.c_int(-1), ctypes.c_int(-1))  # a list would be put back

    def look(x):
        first, second = seen
        (second if first.value >= 0 else first).value = is_replaying()
        return x

    step = run_step(around(look), batch())
    step.replay()
    assert (bool(seen[0].value), seen[1].value, is_replaying()) == (False, 1, False)


def test_keyboard_interrupt_inside_a_replay_reaches_the_user_and_restores():
    calls = []

    def interrupted(x):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return x + torch.rand(1)

    model = around(interrupted)
    step = run_step(model, batch())
    before = _state(model)
    with pytest.raises(KeyboardInterrupt):
        step.replay()
    assert _state(model) == before
    assert not is_replaying()


def test_no_captures_are_declined_with_a_reason():
    model = _model()
    replay = locate_origin(model, [], parameters={}, gradients={}, loss=None, stage="local")
    assert (replay.fidelity, replay.origin) == ("declined", None)
    assert "no forward" in replay.reason


def test_unfinished_capture_is_declined():
    step = CapturedStep(_model())
    step.call(batch())
    step.captures[0].output_count = -1
    assert "did not finish" in step.replay().reason
