"""What runs on one interpreter with its torch: import, watch, a NaN and its replay, and the self-check.

``python tests/setups/other_versions.py`` in the environment in question prints one JSON object; exit code 1
where something of it fails. Needs nothing but the probe's own libraries and torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 60
NAN_STEP = 40
TRAINING = '''
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x, factor):
        hidden = torch.relu(self.first(x))
        return self.second(hidden * torch.log(factor)).squeeze(-1)


def build():
    return Net()


def train(watch, steps, nan_step):
    """Return the parameters and the losses; at `nan_step` the log of a negative number is taken."""
    torch.manual_seed(0)
    net = build()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    run = watch(net, opt)
    losses = []
    for step in range(steps):
        x = torch.randn(32, 8)
        factor = torch.tensor(-1.0 if step == nan_step else 2.0)
        loss = (net(x, factor) - x.sum(-1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if step == nan_step:
            break
    if run is not None:
        run.close()
    return [p.detach().clone() for p in net.parameters()], losses
'''


def main() -> int:
    """Run all of it, print what was found."""
    sys.path.insert(0, str(ROOT))
    found: dict[str, Any] = {"python": platform.python_version()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "other_training.py").write_text(TRAINING, encoding="utf-8")
        sys.path.insert(0, name)
        for part in (_versions, _healthy, _failing, _self_check):
            try:
                found |= part(folder)
            except Exception as error:  # noqa: BLE001 - what fails is what is reported
                found[part.__name__.strip("_")] = f"{type(error).__name__}: {error}"
                found["failed"] = True
    print(json.dumps(found))
    return int(bool(found.get("failed")))


def _versions(folder: Path) -> dict[str, Any]:
    import torch

    import probe

    assert Path(probe.__file__).is_relative_to(ROOT), probe.__file__
    return {"torch": torch.__version__}


def _healthy(folder: Path) -> dict[str, Any]:
    """The weights are those of the training alone, to the bit, and every step is in the journal."""
    import torch
    from other_training import train  # type: ignore[import-not-found]

    import probe

    alone, _ = train(lambda *_: None, STEPS, -1)
    watched, losses = train(_watcher(probe, folder / "healthy"), STEPS, -1)
    assert all(map(torch.equal, alone, watched)), "other weights than without the probe"
    events, frames = _journal(folder / "healthy")
    assert [frame.step for frame in frames] == list(range(STEPS)), "steps are missing"
    recorded = [frame.scalars["loss"] for frame in frames]
    assert max(abs(a - b) for a, b in zip(recorded, losses, strict=True)) < 1e-6, "other losses"
    alarms = [event.kind for event in events if event.severity != "info"]
    assert not alarms, f"false alarms: {alarms}"
    return {"healthy": "ok"}


def _failing(folder: Path) -> dict[str, Any]:
    """The event names the line, and its bundle fails again in another process."""
    from other_training import train

    import probe

    train(_watcher(probe, folder / "failing"), STEPS, NAN_STEP)
    events, _ = _journal(folder / "failing")
    bad = [event for event in events if event.kind.startswith("nonfinite")]
    assert bad, "no event"
    assert bad[0].step == NAN_STEP
    assert bad[0].origin is not None, bad[0].message
    (bundle,) = (folder / "failing").glob("*/bundles/*")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))), "NANSCOPE_OFF": "1"}
    command = [sys.executable, "-m", "probe.forensics.bundle", str(bundle), "--entry", "other_training:build"]
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=folder)
    assert again.returncode == 0, again.stdout + again.stderr
    return {"nan": f"{bad[0].kind}, {bad[0].origin.phase}, replayed"}


def _self_check(folder: Path) -> dict[str, Any]:
    from probe.self_check import check_everything

    findings = check_everything({**os.environ, "NANSCOPE_SPOOL": str(folder / "healthy")})
    about = {"Python", "torch", "torch internals", "following", "replay", "measuring"}
    missing = [finding.name for finding in findings if finding.state == "missing"]
    assert not missing, f"missing: {missing}"
    return {
        "self_check": {
            f.name: f"{f.state}: {f.found}" for f in findings if f.name in about or f.state != "ok"
        }
    }


def _watcher(probe: Any, spool: Path) -> Any:
    return lambda model, optimizer: probe.watch(model, optimizer, spool=spool, connect="")


def _journal(spool: Path) -> tuple[list[Any], list[Any]]:
    """The newest state of every event, and the frames in the order of their steps."""
    from probe.delivery.journal.journal_reader import read_stream
    from probe.delivery.journal.run_folders import list_writers
    from probe.errors import WireError
    from probe.wire import Event, Frame, decode_record

    events: dict[str, Any] = {}
    frames: dict[int, Any] = {}
    for run in (path for path in spool.iterdir() if path.is_dir()):
        for writer in list_writers(run):
            for stream in ("events", "metrics"):
                for _, data in read_stream(writer, stream):  # type: ignore[arg-type]
                    with contextlib.suppress(WireError):
                        record = decode_record(data)
                        if isinstance(record, Event):
                            events[record.id] = record
                        elif isinstance(record, Frame):
                            frames.setdefault(record.step, record)
    return list(events.values()), [frames[step] for step in sorted(frames)]


if __name__ == "__main__":
    sys.exit(main())
