"""How many rows each partition will get in the next batch, learned from what the last batches wrote.

Everything is counted in shares of a batch, so batches of any size teach the same. Two experts watch, and the one that
erred less lately is asked:

as before   each key gets the share that it had: countries, buckets, any key that stays
by age      each key's share changes as those of other keys did at its age: hours and days, where the heaviest key is
            always a new one and the key that was it cools down at once
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

MOST_KEYS = 10_000
"""Keys that are remembered, the heaviest: lighter ones balance by their hash alone."""
HALF_LIFE_BATCHES = 1.0
"""After one batch an observation counts half: two batches after traffic moved, what was before is a quarter."""
FORGET_ROWS = 1 / 1024
"""A key is forgotten when fewer rows are expected of it: one that had a single row ten batches ago."""
MOST_AGES = 1024
"""Keys older than this many batches are expected to stay as they are: it bounds the memory."""
SURE_SHARE = 0.001
"""How shares change at an age is believed where much more than this share of a batch was seen to do so."""
MOST_TIMES_HEAVIER = 3.0
"""What keys did at an age says nothing of keys that are more than this many times heavier: a few heavy keys are
no sum of light ones that came and went."""
WORTH_LEAVING = 0.8
"""The expert by age is left when the other's error is below this part of its own: while nothing ages they differ by
chance only, and the one by age alone knows what happens when the hour changes."""

_DECAY: float = 0.5 ** (1 / HALF_LIFE_BATCHES)
_GAIN = 1 - _DECAY


@dataclass(frozen=True, slots=True)
class Seen:
    """What one partition got in one batch: rows, and the bytes of the `files` that hold them."""

    rows: int
    size_bytes: int
    files: int = 1

    @property
    def tells(self) -> bool:
        """Whether it says how large rows are: there are some."""
        return min(self.rows, self.size_bytes, self.files) > 0


@dataclass(frozen=True)
class Prediction(Generic[Key]):
    """What the next batch is expected to hold; `rows` and `unknown_rows` together are at most `total_rows`.

    `rows` are those of known keys, at most `MOST_KEYS`. `unknown_rows` are those of the heaviest key that was never
    seen: 0.0 where such keys stay light, and where there are more keys than `MOST_KEYS`, as most unknown ones are old
    and light then.
    """

    rows: Mapping[Key, float]
    unknown_rows: float
    total_rows: float


class Traffic(Generic[Key]):
    """Observes batch after batch and predicts the next one: pure state, no clock, mappings in any order."""

    def __init__(self) -> None:
        self._batches = 0
        self._total_rows = _DecayedMean()
        self._histories: dict[Key, _History] = {}
        # in the first batch all keys are new, which says nothing about later ones; but nothing else is known yet
        self._newcomers = _DecayedMean(passing=1)
        self._aging = _Aging()
        self._before, self._by_age = _Expectation(), _Expectation()
        self._is_skewed = False

    def observe(self, batch: Mapping[Key, Seen]) -> None:
        """Learn what a batch wrote. Partitions without rows count as absent; a batch without rows teaches nothing."""
        total = sum(seen.rows for seen in batch.values() if seen.rows > 0)
        if not total:
            return
        new = {key: seen.rows / total for key, seen in batch.items() if seen.rows > 0}
        for key, history in self._histories.items():
            history.share = new.pop(key, 0.0)
        newcomer = max(new.values(), default=0.0)
        if self._batches:
            for expert in (self._before, self._by_age):
                expert.judge(self._histories.values(), newcomer)
        self._total_rows.add(float(total))
        self._newcomers.add(newcomer)
        self._aging.learn(self._histories.values(), newcomer, self._batches, total)
        for history in self._histories.values():
            history.mean += (history.share - history.mean) * _GAIN
        born = self._batches or None
        self._histories.update((key, _History(share, share, share, born)) for key, share in new.items())
        self._forget()
        self._batches += 1
        # as before: the decayed mean of a key's shares since it appeared
        self._before.expect([history.mean for history in self._histories.values()], self._newcomers.value)
        self._by_age.expect(*self._aging.expected(self._histories.values(), self._batches))

    def predict(self) -> Prediction[Key] | None:
        """The next batch; None before any rows were observed."""
        if not self._batches:
            return None
        trusts_age = self._by_age.error > 0 and self._before.error >= WORTH_LEAVING * self._by_age.error
        expert = self._by_age if trusts_age else self._before
        total = self._total_rows.value
        rows = {key: share * total for key, share in zip(self._histories, expert.shares, strict=True)}
        return Prediction(rows, 0.0 if self._is_skewed else expert.newcomer * total, total)

    def _forget(self) -> None:
        least = FORGET_ROWS / self._total_rows.value
        means = {key: history.mean for key, history in self._histories.items() if history.mean >= least}
        self._is_skewed = len(means) > MOST_KEYS
        self._histories = {key: self._histories[key] for key in heaviest(means, MOST_KEYS)}


def heaviest(weights: Mapping[Key, float], most: int) -> Mapping[Key, float]:
    """The `most` heaviest keys; those that tie where the line is drawn are all left out: order never decides."""
    if len(weights) <= most:
        return weights
    first_out = heapq.nlargest(most + 1, weights.values())[-1]
    return {key: weight for key, weight in weights.items() if weight > first_out}


@dataclass(slots=True)
class _History:
    """A key's share in the last batch, its decayed mean, and its level: the last share without what is chance.

    `born` is the number of the batch in which the key appeared; None for the first batch, whose keys have any age.
    """

    share: float
    mean: float
    level: float
    born: int | None


class _DecayedMean:
    """A weighted mean in which every step counts less than the next, and the first `passing` ones not beside others."""

    def __init__(self, passing: int = 0) -> None:
        self._sum = self._weight = 0.0
        self._steps = -passing

    def add(self, value: float, weight: float = 1.0) -> None:
        kept = _DECAY if self._steps > 0 else 0.0
        self._sum = self._sum * kept + value * weight
        self._weight = self._weight * kept + weight
        self._steps += 1

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight > 0 else 0.0


class _Expectation:
    """What one expert expects: `shares` of the known keys, in the order of their histories, and `newcomer` of the
    heaviest new one, together at most 1. `error` is the decayed sum of |expected - actual| over keys.
    """

    def __init__(self) -> None:
        self.error = 0.0
        self.shares: Sequence[float] = ()
        self.newcomer = 0.0

    def judge(self, known: Iterable[_History], newcomer: float) -> None:
        """Compare the batch, whose shares `known` have, with what was expected of it."""
        errors = [abs(history.share - share) for history, share in zip(known, self.shares, strict=True)]
        self.error = _DECAY * self.error + math.fsum(errors) + abs(newcomer - self.newcomer)

    def expect(self, shares: Sequence[float], newcomer: float) -> None:
        """Of the next batch; in proportion where they are more than one batch."""
        scale = 1 / max(1.0, math.fsum(shares) + newcomer)
        self.shares, self.newcomer = [share * scale for share in shares], newcomer * scale


class _Aging:
    """Expects of each key its level, times how shares changed lately when keys came to that age.

    A new key is expected to weigh what new keys weighed, where the known ones leave room for it.
    """

    def __init__(self) -> None:
        self._newcomers = _DecayedMean(passing=1)
        self._changes: dict[int, tuple[float, float]] = {}

    def learn(self, known: Collection[_History], newcomer: float, batch: int, total_rows: int) -> None:
        """Take in batch number `batch`, whose shares `known` have; `newcomer` is the share of its heaviest new key."""
        expected = self._shares(known, batch)
        self._learn_changes(known, batch)
        for history, share in zip(known, expected, strict=True):
            history.level = _followed(share, history.share, total_rows)
        # weighted by itself: light keys that come late do not make the next heavy one lighter
        self._newcomers.add(newcomer, newcomer)

    def expected(self, known: Collection[_History], batch: int) -> tuple[list[float], float]:
        """Shares of the known keys in batch number `batch`, and of the heaviest new one."""
        shares = self._shares(known, batch)
        # until a new key was seen again, nothing says that it stays
        taken = math.fsum(shares) if 1 in self._changes else 0.0
        room, newcomer = max(0.0, 1 - taken), self._newcomers.value
        return shares, newcomer if room > newcomer / 2 else room

    def _shares(self, known: Collection[_History], batch: int) -> list[float]:
        ratios = {age: self._ratio(age, histories) for age, histories in _cohorts(known, batch).items()}
        return [h.level if h.born is None else min(1.0, h.level * ratios.get(batch - h.born, 1.0)) for h in known]

    def _ratio(self, age: int, histories: Collection[_History]) -> float:
        before, after = self._changes.get(age, (0.0, 0.0))
        if math.fsum(history.level for history in histories) > MOST_TIMES_HEAVIER * before:
            return 1.0
        return (after + SURE_SHARE) / (before + SURE_SHARE)

    def _learn_changes(self, known: Collection[_History], batch: int) -> None:
        """Shares before and after keys came to an age; of the past as much counts as one whole batch of rows."""
        for age, histories in _cohorts(known, batch).items():
            old_before, old_after = self._changes.get(age, (0.0, 0.0))
            before = old_before + math.fsum(history.level for history in histories)
            after = old_after + math.fsum(history.share for history in histories)
            scale = 1 / max(1.0, before)
            self._changes[age] = before * scale, after * scale


def _cohorts(known: Iterable[_History], batch: int) -> dict[int, list[_History]]:
    """Histories by their age in a batch, where that is known and not too old."""
    found: dict[int, list[_History]] = {}
    for history in known:
        if history.born is not None and (age := batch - history.born) <= MOST_AGES:
            found.setdefault(age, []).append(history)
    return found


def _followed(expected: float, share: float, total_rows: int) -> float:
    """The level after a batch: part of the way for what may be chance, all of it for a real change.

    A change is real when it is more than half of the greater value and more than three standard deviations of a count.
    """
    greater, change = max(expected, share), share - expected
    if abs(change) > greater / 2 and change * change * total_rows > 9 * greater:
        return share
    return expected + change * _GAIN
