"""Every level on set-ups that are easily disturbed: the same gradients, weights and random numbers."""

from pathlib import Path

import pytest
import torch
from reference import Scene, recorded
from small_training import batches, small_model
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Disturbed(nn.Module):
    """Shared layer, in-place activation, dropout inside a checkpoint, an output used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.mix = nn.Linear(3, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(self.inner, x, use_reentrant=False)
        result: Tensor = self.mix(self.act(self.mix(hidden))) + hidden
        return result


@pytest.mark.parametrize("level", ["basic", "advanced", "extreme"])
@pytest.mark.parametrize("scaled", [False, True])
def test_every_level_has_the_same_gradients_and_weights(tmp_path: Path, level: str, scaled: bool) -> None:
    def loop(scene: Scene) -> nn.Module:
        model = Disturbed()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
        with scene.watch(model, optimizer, level=level, overhead_limit=0.0):
            for index, (inputs, targets) in enumerate(batches(12)):
                with torch.autocast("cpu", torch.bfloat16, enabled=scaled):
                    loss = F.cross_entropy(model(inputs), targets)
                scene.backward(loss, raw=scaler.scale(loss / 2), samples=8)
                if index % 2:
                    scaler.unscale_(optimizer)
                    scene.note(model, stage="unscaled" if scaled else "local")
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        return model

    assert recorded(loop, tmp_path).differences(frames=6) == []
