"""Nothing is lost and nothing is stored twice, whatever is killed: real processes, real store, kill -9."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from delivery import assert_delivered
from delivery_processes import RUN, Site
from forked_scripts import ForkedScripts

from dashboard.store.duck import DuckStore

KILLS = 20
STEP_S = 0.004
"""A step of the trainer takes at least this long, so time bounds its steps: incarnations never overlap."""


@pytest.fixture
def site(tmp_path: Path, forked_dashboard: ForkedScripts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("NANSCOPE_CONNECT")  # a helper is to come
    site = Site(tmp_path, forked_dashboard, DELIVERY_STEP_S=str(STEP_S))
    yield site
    site.close()


class Chaos:
    """Two ranks and a dashboard that are killed at random, and their helper with them."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.chance = random.Random(seed)
        self.kills: Counter[str] = Counter()
        self._began = time.monotonic()
        self.dashboard = site.start_dashboard()
        self.trainers = [site.start_trainer(rank=rank) for rank in (0, 1)]

    def next_step(self) -> int:
        """A step that no trainer has reached."""
        return int((time.monotonic() - self._began) / STEP_S) + 1

    def kill_trainer(self) -> None:
        rank = self.chance.randrange(2)
        self.trainers[rank].kill()
        self.trainers[rank].wait(30)
        self.trainers[rank] = self.site.start_trainer(rank=rank, first_step=self.next_step())
        self.kills["trainer"] += 1

    def kill_helper(self) -> None:
        if (pid := self.site.helper_pid()) is not None:
            os.kill(pid, signal.SIGKILL)
            self.kills["helper"] += 1

    def kill_dashboard(self) -> None:
        self.dashboard.kill()
        self.dashboard.wait(30)
        self.dashboard = self.site.start_dashboard()
        self.kills["dashboard"] += 1

    def rage(self, kills: int) -> None:
        """Kill until each of the three has died this often; end with trainers dead and a dashboard up."""
        victims = {"trainer": self.kill_trainer, "helper": self.kill_helper, "dashboard": self.kill_dashboard}
        while left := [name for name in victims if self.kills[name] < kills]:
            time.sleep(self.chance.uniform(0.02, 0.6))
            victims[self.chance.choice(left)]()
        for trainer in self.trainers:
            trainer.kill()
            trainer.wait(30)


@pytest.mark.slow
def test_delivery_survives_kills_of_every_process(site: Site) -> None:
    seed = int(os.environ.get("DELIVERY_SEED", time.time_ns() % 10**6))
    print("DELIVERY_SEED", seed)
    chaos = Chaos(site, seed)
    chaos.rage(KILLS)
    last = site.start_trainer(first_step=chaos.next_step(), steps=200)
    assert last.wait(60) == 0, site.logs()
    site.wait_for_helper_to_leave()
    site.close()
    store = DuckStore(site.data)
    try:
        journals = assert_delivered(site.spool, RUN, store)
        confirmed = site.confirmed.read_text().split()
        assert set(confirmed) <= {event.id for event in store.events(RUN)}
        assert len(confirmed) > 100
    finally:
        store.close()
    print(dict(chaos.kills), sum(journals.written.values()), "records")
