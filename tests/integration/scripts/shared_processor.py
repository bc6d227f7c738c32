"""A small training on one processor, which something disturbs after six seconds.

`python shared_processor.py WAY SPOOL`. Nothing of what it prints or records is timed by the test.
"""

import os
import subprocess
import sys
import time

import torch
from torch import nn

import probe
from probe.detectors.sampled_thresholds import SampledThresholds

FIRST_S, SECOND_S = 6.5, 9.0
OTHER = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    pass"
STOPS = """
import os, signal, time
parent = os.getppid()
while os.getppid() == parent:
    os.kill(parent, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(parent, signal.SIGCONT)
    time.sleep(1.0)
"""
way, spool = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
# Also what is started here runs on this one.
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
if "last in the queue" in way:
    os.nice(19)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs, targets = torch.randn(64, 256), torch.randint(10, (64,))
large = torch.randn(1200, 1200)
file = os.open(os.path.join(spool, "..", "file"), os.O_WRONLY | os.O_CREAT)
run = probe.watch(
    model,
    optimizer,
    spool=spool,
    connect="",
    quiet=True,
    overhead_limit=0.0,
    sampled_thresholds=SampledThresholds(slowdown_s=3.0, slowdown_steps=10),
)
others = []
began, is_disturbed = time.monotonic(), False
while (passed_s := time.monotonic() - began) < FIRST_S + SECOND_S:
    if passed_s > FIRST_S and not is_disturbed:
        is_disturbed = True
        number = {"others": 2, "last": 1, "both": 1}.get(way.split()[0], 0)
        others = [subprocess.Popen([sys.executable, "-c", OTHER]) for _ in range(number)]
        if way == "stopped now and then":
            others.append(subprocess.Popen([sys.executable, "-c", STOPS]))
    if is_disturbed and way in ("loader that sleeps", "both: others and a loader that sleeps"):
        time.sleep(0.2)
    if is_disturbed and way == "more to compute":
        for _ in range(12):
            large @ large
    if is_disturbed and way == "slower disk":
        # As a disk that is slow: the process neither computes nor waits for a processor.
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            os.pwrite(file, bytes(1 << 20), 0)
            os.fsync(file)
            time.sleep(0.01)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
run.close()
for other in others:
    other.kill()
    other.wait()
