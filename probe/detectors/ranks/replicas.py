"""Compares replicas: ranks that take the same updates and should hold the same parameters. Numbers only.

Which ranks are replicas of each other is read off the numbers: those whose gradients agree, parameter by
parameter, as an all-reduce leaves them, whichever code called it. Ranks with gradients of their own (shards,
pipeline stages, populations, local SGD between two meetings) are nobody's replicas and are not compared.
After an all-reduce the bits are the same on every rank, so replicas stay the same bit by bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...wire import Event, Severity
from .lineup import CAP_BYTES, Lineup
from .norms import Bools, Floats, agree_with, groups_of, relative_difference
from .rank_texts import divergence_advice, divergence_message, own_ways_message

SAME_DEVICES: Final = 2e-6
"""Relative difference of norms beyond which replicas on equal devices differ: 16 float32 roundings, for a
norm may be summed in another order."""
OTHER_DEVICES: Final = 1e-4
"""The same where the devices differ: an update is rounded in another way on each, some 1e-7 a step."""
CONFIRMED: Final = 2
"""Samples with equal gradients and other parameters, before it is said: one may be of a torn moment."""
_OWN_WAYS_SAMPLES: Final = 5
"""Samples without any agreement after which ranks are said to train models of their own."""
_MOST_NAMED: Final = 8
"""Differing ranks with an event of their own."""
_LARGE_SHARE: Final = 0.75
"""A rank whose gradients differ too is compared with the others where they are at least this many."""
_SAMPLE_BYTES: Final = 512
"""What a sample takes besides its norms, about."""
_TOTALS: Final = 64
_HISTORY: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinding:
    """What is to be said of one rank, in its latest state."""

    kind: str
    severity: Severity
    rank: int
    subject: str
    step: int
    """The first one at which it is so."""
    time: float
    message: str
    value: float | None = None
    threshold: float | None = None
    baseline: dict[str, float] | None = None
    neighbours: tuple[tuple[int, float], ...] = ()
    affected: tuple[str, ...] = ()
    source: Event | None = None
    """What the rank itself has told of it."""
    advice: str = ""
    """Key of `ranks_texts.ADVICE`; "": the kind's own."""
    count: int = 1
    last_step: int
    ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """Norms of one rank at one step, (parameters,) each, before its update."""

    time: float
    gradients: Floats
    parameters: Floats
    missing: Bools | None = None
    """Which have no gradient."""


@dataclass(slots=True)
class _Episode:
    """A rank that differs."""

    finding: RankFinding
    last_step: int = 0
    samples: int = 0
    is_said: bool = False


@dataclass(slots=True)
class _OwnWays:
    """Counts the samples at which no two ranks agreed."""

    first: int = 0
    samples: int = 0
    is_over: bool = False
    _first_agreed: int | None = None

    def note_agreement(self, step: int) -> None:
        """Some ranks agree: at first that says nothing; later on they meet at times, as in local SGD."""
        if self._first_agreed is None and not self.samples:
            self._first_agreed = step
        self.is_over |= step != self._first_agreed

    def note(self, step: int) -> bool:
        """Count one; whether it is the one at which it is to be said."""
        if self.is_over:
            return False
        if not self.samples:
            self.first = step
        self.samples += 1
        self.is_over = self.samples >= _OWN_WAYS_SAMPLES
        return self.is_over


@dataclass(frozen=True, slots=True)
class _Compared:
    """Ranks that take the same updates, at one step."""

    ranks: list[int]
    differing: dict[int, Floats]
    """Rank -> (parameters,) relative difference from the reference."""
    reference: int
    agreeing: int
    has_majority: bool
    strays: frozenset[int]
    """Ranks with gradients of their own."""


class ReplicaWatch:
    """Follows the ranks of one model.

    Args:
        expected: the run's world size.
        parameter_names: in the layout's order.
        layer_of: (parameters,) the layer of each.
        tolerance: relative difference of norms that says nothing.
        cap_bytes: room for samples that wait for other ranks.
    """

    def __init__(
        self,
        expected: int,
        *,
        parameter_names: Sequence[str],
        layer_of: Sequence[str],
        tolerance: float = SAME_DEVICES,
        cap_bytes: int = CAP_BYTES,
    ) -> None:
        self.lineup: Lineup[ReplicaSample] = Lineup(expected, cap_bytes=cap_bytes)
        self._expected = expected
        self._names, self._layer_of = tuple(parameter_names), tuple(layer_of)
        self.tolerance = tolerance
        self._totals: dict[int, deque[tuple[int, float]]] = {}
        self._last_gradients: Floats | None = None
        self._equal_at: dict[int, int] = {}
        self._episodes: dict[int, _Episode] = {}
        self._history: dict[int, deque[tuple[int, float]]] = {}
        self._own_ways = _OwnWays()

    def reach(self, rank: int, step: int, time: float, total: float | None) -> None:
        """A rank has finished a step.

        Args:
            rank: whose step.
            step: its number.
            time: UNIX seconds.
            total: global norm of its gradients.
        """
        self.lineup.reach(rank, step, time)
        if total is not None:
            self._totals.setdefault(rank, deque(maxlen=_TOTALS)).append((step, total))

    def add(self, rank: int, step: int, sample: ReplicaSample) -> None:
        """A rank's norms at a step."""
        if len(sample.gradients) == len(sample.parameters) == len(self._names):
            size = sample.gradients.nbytes + sample.parameters.nbytes + _SAMPLE_BYTES
            self.lineup.add(rank, step, sample.time, sample, size_bytes=size)

    def findings(self, *, everything: bool = False) -> list[RankFinding]:
        """Judge every step that all ranks have passed; return what is new or has changed.

        Args:
            everything: nothing more will come: judge what waits as well.
        """
        found: list[RankFinding] = []
        for step, samples in self.lineup.take(everything=everything):
            found += self._judge(step, samples)
        return found

    def _judge(self, step: int, samples: Mapping[int, ReplicaSample]) -> list[RankFinding]:
        usable = {rank: sample for rank, sample in samples.items() if _is_usable(sample)}
        if len(usable) < 2:
            return []
        ranks = list(usable)
        gradients = np.stack([_marked_gradients(usable[rank]) for rank in ranks])
        parameters = np.stack([usable[rank].parameters for rank in ranks])
        groups = groups_of(gradients, self.tolerance)
        largest = max(groups, key=len)
        if len(largest) < 2:
            return self._note_own_ways(step, usable, parameters)
        self._own_ways.is_over = True
        if not self._has_varied(gradients[largest[0]]):
            return []
        found: list[RankFinding] = []
        for group in groups:
            members = [*group, *self._strays(ranks, groups)] if group is largest else group
            if len(members) < 2:
                continue
            # What has no gradient is moved by nobody.
            moved = np.where(gradients[group[0]] >= 0, parameters, 0.0)
            compared = self._compare(members, ranks, moved, reference_of=group)
            found += self._follow(step, compared, usable)
        return found

    def _has_varied(self, gradients: Floats) -> bool:
        """Whether gradients agree because they were averaged, and not because they are always the same."""
        previous, self._last_gradients = self._last_gradients, gradients
        return previous is None or not agree_with(previous, gradients[None], self.tolerance)[0]

    def _strays(self, ranks: list[int], groups: list[list[int]]) -> list[int]:
        """Ranks that were replicas, and whose gradients are now their own while nearly all others' agree."""
        largest = max(groups, key=len)
        if len(largest) < max(2, _LARGE_SHARE * len(ranks)):
            return []
        alone = [group[0] for group in groups if len(group) == 1]
        return [
            index
            for index in alone
            if ranks[index] in self._equal_at and not self._is_shifted(ranks[index], ranks[largest[0]])
        ]

    def _is_shifted(self, rank: int, other: int) -> bool:
        """Whether a rank counts its steps from elsewhere: its norms are there, under other numbers."""
        own, others = self._totals.get(rank), self._totals.get(other)
        if not own or not others:
            return True
        recent = np.array([total for _, total in list(own)[-_HISTORY:]])
        numbers = np.array([step for step, _ in list(own)[-_HISTORY:]])
        steps, totals = (np.array(column) for column in zip(*others, strict=True))
        same = np.abs(recent[:, None] - totals) <= self.tolerance * np.abs(totals)
        return bool((same & (numbers[:, None] != steps)).any(axis=1).sum() >= 2)

    def _compare(
        self, members: list[int], ranks: list[int], parameters: Floats, *, reference_of: list[int]
    ) -> _Compared:
        """Find who differs from the largest group of equals, or from the one with the lowest rank."""
        values = parameters[members]
        alike = groups_of(values, self.tolerance)
        chosen = [group for group in alike if members[group[0]] in reference_of] or alike
        reference = max(chosen, key=lambda group: (len(group), -ranks[members[group[0]]]))
        base = values[reference[0]]
        differing = {
            ranks[members[index]]: relative_difference(values[index], base)
            for group in alike
            if group is not reference
            for index in group
        }
        return _Compared(
            [ranks[index] for index in members],
            dict(sorted(differing.items())),
            ranks[members[reference[0]]],
            len(reference),
            2 * len(reference) > len(members),
            frozenset(ranks[index] for index in members if index not in reference_of),
        )

    def _follow(
        self, step: int, compared: _Compared, samples: Mapping[int, ReplicaSample]
    ) -> Iterator[RankFinding]:
        """Begin, carry on and end the episodes of the ranks compared."""
        is_known = compared.has_majority or len(samples) >= self._expected
        for rank in compared.ranks:
            difference = compared.differing.get(rank)
            history = self._history.setdefault(rank, deque(maxlen=_HISTORY))
            if difference is None:
                self._equal_at[rank] = step
                if (ended := self._end(rank)) is not None:
                    yield ended
            elif is_known:
                episode = self._episodes.get(rank)
                if episode is None:
                    episode = _Episode(self._describe(rank, step, compared, samples))
                    self._episodes[rank] = episode
                episode.samples += 1
                episode.last_step = step
                if (finding := self._say(rank, step, episode, compared)) is not None:
                    yield finding
            history.append((step, 0.0 if difference is None else float(difference.max())))

    def _say(self, rank: int, step: int, episode: _Episode, compared: _Compared) -> RankFinding | None:
        """The event of a rank that differs: when it is certain, and whenever its samples have doubled."""
        first = [*compared.differing][: _MOST_NAMED if compared.has_majority else 1]
        if not episode.is_said and (episode.samples < CONFIRMED or rank not in first):
            return None
        if episode.is_said and episode.samples & (episode.samples - 1):
            return None
        episode.is_said = True
        return self._renew(episode, step)

    def _describe(
        self, rank: int, step: int, compared: _Compared, samples: Mapping[int, ReplicaSample]
    ) -> RankFinding:
        """What is said of a rank: how it was when it was first seen to differ."""
        difference = compared.differing[rank]
        worst = int(difference.argmax())
        equal_at, is_stray = self._equal_at.get(rank), rank in compared.strays
        return RankFinding(
            kind="rank_divergence",
            severity="critical",
            rank=rank,
            subject="parameters",
            step=step,
            time=samples[rank].time,
            message=divergence_message(
                rank,
                differing=[*compared.differing],
                reference=compared.reference,
                ranks=len(compared.ranks),
                agreeing=compared.agreeing,
                has_majority=compared.has_majority,
                step=step,
                equal_at=equal_at,
                shares_gradients=not is_stray,
                parameter=self._names[worst],
                own=float(samples[rank].parameters[worst]),
                other=float(samples[compared.reference].parameters[worst]),
            ),
            value=float(difference.max()),
            threshold=self.tolerance,
            baseline={"ranks_compared": float(len(compared.ranks)), "ranks_equal": float(compared.agreeing)},
            neighbours=tuple(self._history.get(rank, ())),
            affected=tuple(
                dict.fromkeys(self._layer_of[i] for i in np.flatnonzero(difference > self.tolerance))
            ),
            advice=divergence_advice(is_stray=is_stray, was_equal=equal_at is not None or step > 0),
            last_step=step,
        )

    def _renew(self, episode: _Episode, step: int, *, ended: bool = False) -> RankFinding:
        episode.finding = replace(episode.finding, count=episode.samples, last_step=step, ended=ended)
        return episode.finding

    def _end(self, rank: int) -> RankFinding | None:
        episode = self._episodes.pop(rank, None)
        if episode is None or not episode.is_said:
            return None
        return self._renew(episode, episode.last_step, ended=True)

    def close(self) -> list[RankFinding]:
        """End what is running: the ranks are over."""
        ended = [self._end(rank) for rank in [*self._episodes]]
        return [finding for finding in ended if finding is not None]

    def _note_own_ways(
        self, step: int, samples: Mapping[int, ReplicaSample], parameters: Floats
    ) -> list[RankFinding]:
        """No two ranks' gradients agree: each goes its own way, which may be meant so. Said once."""
        if agree_with(parameters[0], parameters, self.tolerance).any(where=np.arange(len(parameters)) > 0):
            self._own_ways.note_agreement(step)
            return []
        if not self._own_ways.note(step):
            return []
        ranks = list(samples)
        return [
            RankFinding(
                kind="rank_divergence",
                severity="info",
                rank=ranks[0],
                subject="gradients",
                advice="gradients",
                step=self._own_ways.first,
                time=samples[ranks[0]].time,
                message=own_ways_message(ranks, self._own_ways.first, step),
                affected=tuple(f"rank {rank}" for rank in ranks),
                last_step=step,
                ended=True,
            )
        ]


def _is_usable(sample: ReplicaSample) -> bool:
    """Whether a sample can show that gradients were shared: finite, and not all 0."""
    given = sample.gradients if sample.missing is None else sample.gradients[~sample.missing]
    return bool(
        given.size and given.any() and np.isfinite(given).all() and np.isfinite(sample.parameters).all()
    )


def _marked_gradients(sample: ReplicaSample) -> Floats:
    """Norms, with what no norm can be where a parameter has no gradient."""
    return sample.gradients if sample.missing is None else np.where(sample.missing, -1.0, sample.gradients)
