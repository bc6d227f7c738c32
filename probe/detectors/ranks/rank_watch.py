"""Makes events of what only several ranks together show: divergence, who went bad first, stragglers.

Fed with the records of all ranks' journals, in whatever order they come, by the helper, by the dashboard's
store and by `dashboard events`: all three make the same events with the same ids. Does no I/O; torch-free.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import numpy as np

from ...wire import Event, Evidence, Frame, Layout, RunStart, Stacks, event_id, member_number
from ..advice import advice_for
from .first_bad import FirstBadRank
from .lineup import CAP_BYTES
from .pace import Pace, PaceWatch
from .rank_texts import ADVICE
from .replicas import OTHER_DEVICES, SAME_DEVICES, RankFinding, ReplicaSample, ReplicaWatch

_Key: TypeAlias = str
"""Digest of a model: its name, and names, shapes and types of its parameters."""
_OWN_PARTS: Final = frozenset({"shard", "micro"})
"""Stages of gradients that are no whole step's."""
KINDS: Final = frozenset({"rank_divergence", "performance_degradation"})
_MAX_GROUPS: Final = 64


class RankColumn(msgspec.Struct, array_like=True, frozen=True):
    """A `wire.Column` whose values stay where they are."""

    name: str
    dtype: Literal["f4", "f8"]
    data: memoryview


class RankFrame(msgspec.Struct, tag="frame", tag_field="t", frozen=True, kw_only=True):
    """As much of a `wire.Frame` as is needed here: the rest is skipped in decoding, and no values copied."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    time: float
    layout: int = 0
    stage: str = "local"
    scalars: dict[str, float] = {}
    columns: list[RankColumn] = []
    missing: bytes = b""
    compared: list[RankColumn] = []


class _Group:
    """The ranks that train one model; of each rank the incarnation that belongs together with the others'."""

    def __init__(self, layout: Layout, world_size: int, cap_bytes: int) -> None:
        self.model, self.member = layout.model, layout.member
        self.members: dict[int, RunStart] = {}
        self.reached: dict[int, int] = {}
        self.gone: set[int] = set()
        self.waited: dict[int, float] = {}
        """Newest reading of each rank's waits for processors."""
        layers = [layout.layers[parameter.layer].name for parameter in layout.parameters]
        self.replicas = ReplicaWatch(
            world_size,
            parameter_names=[parameter.name for parameter in layout.parameters],
            layer_of=layers,
            cap_bytes=cap_bytes,
        )
        self.first_bad = FirstBadRank()
        self.pace = PaceWatch(world_size)
        self.has_news = False

    def join(self, start: RunStart) -> None:
        self.members[start.rank] = start
        self.replicas.lineup.join(start.rank)
        self.pace.lineup.join(start.rank)
        self.first_bad.reach(start.rank, -1)
        if len({tuple(member.devices) for member in self.members.values()}) > 1:
            self.replicas.tolerance = OTHER_DEVICES
        else:
            self.replicas.tolerance = SAME_DEVICES

    def leave(self, rank: int) -> None:
        self.gone.add(rank)
        self.replicas.lineup.leave(rank)
        self.pace.lineup.leave(rank)
        self.first_bad.leave(rank)
        self.has_news = True

    def take(self, *, everything: bool) -> list[RankFinding]:
        everything = everything or self.gone == self.members.keys()
        found = self.replicas.findings(everything=everything)
        found += self.first_bad.findings(everything=everything)
        found += self.pace.findings(everything=everything)
        if everything:
            found += [*self.replicas.close(), *self.pace.close()]
        return found


class RankWatch:
    """All ranks of one run, as far as their records come here.

    Args:
        run: its id.
        cap_bytes: room for what waits for other ranks, of each model.
    """

    def __init__(self, run: str, *, cap_bytes: int = CAP_BYTES) -> None:
        self._run, self._cap_bytes = run, cap_bytes
        self._starts: dict[tuple[int, int], RunStart] = {}
        self._keys: dict[tuple[int, int, int], _Key] = {}
        self._over: dict[tuple[int, int], int] = {}
        """Incarnations that have ended, with the last step that there is to come of each."""
        self._groups: dict[_Key, _Group] = {}
        self._known: dict[tuple[int, int, str, str], Event] = {}
        self._left: list[tuple[_Group, RankFinding]] = []

    def start(self, start: RunStart) -> None:
        """An incarnation has begun; of a run with one rank nothing is followed."""
        if start.world_size > 1 and not start.member:
            self._starts[start.rank, start.incarnation] = start

    def follows(self, rank: int, incarnation: int) -> bool:
        """Whether an incarnation's frames are wanted."""
        return (rank, incarnation) in self._starts

    def layout(self, rank: int, incarnation: int, layout: Layout) -> None:
        """An incarnation says what its model is."""
        start = self._starts.get((rank, incarnation))
        if start is None or any(item.layer >= len(layout.layers) for item in layout.parameters):
            return
        key = _key_of(layout)
        self._keys[rank, incarnation, layout.layout] = key
        group = self._groups.get(key)
        member = None if group is None else group.members.get(rank)
        if member is not None and member.incarnation >= incarnation:
            return
        if group is None or member is not None:
            # The first rank that has come again begins anew, and the others are expected to follow. Journals
            # that are read rank by rank have brought some of them before.
            others = [] if group is None or member is None else _began_with(start, member, group)
            self._close(key)
            if len(self._groups) >= _MAX_GROUPS:
                return
            group = self._groups[key] = _Group(layout, start.world_size, self._cap_bytes)
            for other in others:
                group.join(other)
                self._leave_if_over(group, other.rank, other.incarnation)
        group.join(start)
        self._leave_if_over(group, rank, incarnation)

    def event(self, event: Event) -> None:
        """An event of any rank, or of another who watches the ranks."""
        if event.kind in KINDS:
            self._known[event.rank, event.incarnation, event.kind, event.subject] = event
        elif event.kind.startswith("nonfinite_"):
            for group in self._groups_of(event.rank, event.incarnation):
                if group.model == event.model:
                    group.first_bad.report(event)
                    group.has_news = True

    def over(self, rank: int, incarnation: int, *, last_step: int | None = None) -> None:
        """An incarnation has ended, or its process is gone.

        Args:
            rank: whose.
            incarnation: its number.
            last_step: the step whose frame is still to come, or has come; None when all has.
        """
        self._over[rank, incarnation] = -1 if last_step is None else last_step
        for group in self._groups_of(rank, incarnation):
            self._leave_if_over(group, rank, incarnation)

    def _leave_if_over(self, group: _Group, rank: int, incarnation: int) -> None:
        last_step = self._over.get((rank, incarnation))
        if last_step is not None and group.reached.get(rank, -1) >= last_step and rank not in group.gone:
            group.leave(rank)

    def frame(self, rank: int, incarnation: int, frame: Frame | RankFrame) -> None:
        """A frame of any rank."""
        key = self._keys.get((rank, incarnation, frame.layout))
        group = None if key is None else self._groups.get(key)
        if group is None or group.members.get(rank) is not self._starts[rank, incarnation]:
            return
        group.has_news = True
        group.reached[rank] = max(frame.step, group.reached.get(rank, -1))
        scalars = frame.scalars
        total = scalars.get("grad_norm")
        group.replicas.reach(rank, frame.step, frame.time, total)
        group.first_bad.reach(rank, frame.step)
        before, step_s = scalars.get("before_backward_s"), scalars.get("step_time_s")
        if before is not None and step_s is not None and "profiled" not in scalars:
            own = scalars.get("own_backward_s")
            if "process_rss_bytes" in scalars:
                group.waited[rank] = scalars.get("processor_wait", 0.0)
            waited = group.waited.get(rank, 0.0)
            pace = Pace(before, step_s, None if own is None else before + own, waited)
            group.pace.add(rank, frame.step, frame.time, pace)
        if total is not None and frame.stage not in _OWN_PARTS:
            sample = _sample_of(frame)
            if sample is not None:
                group.replicas.add(rank, frame.step, sample)
        if self._over:
            self._leave_if_over(group, rank, incarnation)

    def take(self, *, everything: bool = False) -> list[Event]:
        """Return the events that are new or have changed.

        Args:
            everything: nothing more will come.
        """
        found, self._left = self._left, []
        for group in self._groups.values():
            if group.has_news or everything:
                group.has_news = False
                found += [(group, finding) for finding in group.take(everything=everything)]
        return [self._event(group, finding) for group, finding in found]

    def _groups_of(self, rank: int, incarnation: int) -> list[_Group]:
        start = self._starts.get((rank, incarnation))
        return [group for group in self._groups.values() if start and group.members.get(rank) is start]

    def _close(self, key: _Key) -> None:
        group = self._groups.pop(key, None)
        if group is not None:
            self._left += [(group, finding) for finding in group.take(everything=True)]

    def _event(self, group: _Group, finding: RankFinding) -> Event:
        incarnation = group.members[finding.rank].incarnation
        known = self._known.get((finding.rank, incarnation, finding.kind, finding.subject))
        # Who begins to look in mid-run sees it later than who has said it first.
        step, time = finding.step, finding.time
        if known is not None and not known.ended:
            step, time = known.step, known.time
        event = Event(
            id=event_id(
                run=self._run,
                rank=finding.rank,
                incarnation=incarnation,
                model=group.model,
                kind=finding.kind,
                subject=finding.subject,
                step=step,
                member=member_number(group.member),
            ),
            run=self._run,
            rank=finding.rank,
            incarnation=incarnation,
            model=group.model,
            step=step,
            time=time,
            kind=finding.kind,
            severity=finding.severity,
            subject=finding.subject,
            message=finding.message[:4000],
            evidence=Evidence(
                value=finding.value,
                threshold=finding.threshold,
                baseline=finding.baseline,
                neighbours=list(finding.neighbours),
            ),
            origin=None if finding.source is None else finding.source.origin,
            noticed_at=None if finding.source is None else finding.source.noticed_at,
            stacks=Stacks() if finding.source is None else finding.source.stacks,
            propagated_to=list(finding.affected[:1000]),
            advice=list(ADVICE.get(finding.advice, ())) or advice_for(finding.kind),
            count=finding.count,
            last_step=finding.last_step,
            ended=finding.ended,
            member=group.member,
        )
        self._known[finding.rank, incarnation, finding.kind, finding.subject] = event
        return event


def _began_with(new: RunStart, old: RunStart, group: _Group) -> list[RunStart]:
    """Members of a group that began with the new incarnation of a rank, and not with its old one."""
    return [
        other
        for other in group.members.values()
        if abs(other.incarnation - new.incarnation) < abs(other.incarnation - old.incarnation)
    ]


def _key_of(layout: Layout) -> _Key:
    identity = (
        layout.model,
        member_number(layout.member),
        [(item.name, item.shape, item.dtype) for item in layout.parameters],
    )
    return hashlib.sha256(msgspec.msgpack.encode(identity)).hexdigest()


def _sample_of(frame: Frame | RankFrame) -> ReplicaSample | None:
    """The norms of a frame that has both kinds; None of others."""
    columns = {column.name: column for column in (*frame.columns, *frame.compared)}
    gradients, parameters = columns.get("grad_norm"), columns.get("parameter_norm")
    if gradients is None or parameters is None:
        return None
    try:
        values = [
            np.frombuffer(item.data, f"<{item.dtype}").astype(np.float64) for item in (gradients, parameters)
        ]
    except ValueError:
        # Not a whole number of elements: a damaged journal.
        return None
    missing = None
    if len(frame.missing):
        missing = np.unpackbits(np.frombuffer(frame.missing, np.uint8))[: len(values[0])].astype(np.bool_)
        if len(missing) < len(values[0]):
            return None
    return ReplicaSample(time=frame.time, gradients=values[0], parameters=values[1], missing=missing)
