"""Every order in which several programs can talk to one catalog, and every way in which it can answer them.

A program does nothing but ask, and what it asks next follows from the answers that it got. So no threads are needed:
it is run anew from its beginning with one more answer, each sequence of answers once, and what it asks then is kept.
The search walks all choices (who goes on, what the answer is, whether another writer comes first) depth first; states
that were reached before, by another order, are not walked again, only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from icesize.errors import IcesizeError, TableError
from icesize.table.commit.protocol import CatalogBusy, CommitLost, CommitRefused, CommitRequest, StepDone
from tests.support.fake_catalog import FakeCatalog, FakeLoaded, FakeStaged, State

Program = Callable[["ScriptedCatalog"], object]
Rival = Callable[[FakeCatalog], object]

ASIDE = ("stage", "write")
"""Files under names that nobody else knows: no other program can tell when they were written."""
FAULTS = {
    "load": ("stale", "down", "ctrl-c"),
    "commit": ("busy", "lie", "lost", "unknown", "gone", "late", "refused", "ctrl-c"),
    "discard": (),
    "delete": (),
}
"""By what is asked the bad answers (see FakeCatalog); besides, whoever asks may die instead. After Ctrl-C a program
still cleans up, after its death it does not."""
HARMLESS = ("busy", "lie", "refused")
"""Faults after which a program still knows what became of its work, and leaves nothing behind."""
_DEATH = "death"


class Pause(BaseException):
    """Stops a program where it asks what has no answer yet; what it does on its way out has no effect."""


@dataclass(frozen=True)
class CatalogCall:
    """What a program waits for."""

    verb: str
    what: Any = None


@dataclass(frozen=True)
class Ended:
    """How a program ended: with a result, with an error of icesize, or by Ctrl-C."""

    error: BaseException | None = None


class ScriptedCatalog:
    """The catalog as one program sees it (a Committer): it hands out the answers that are known, then stops."""

    name = "lake.db.t"

    def __init__(self, run_id: str, answers: Iterable[Any]) -> None:
        self.run_id = run_id
        self.asked: CatalogCall | None = None
        self._answers = iter(answers)
        self._staged = 0

    def load(self) -> FakeLoaded:
        return FakeLoaded(self._ask("load"))

    def plan(self) -> State:
        """What work is planned on; TableError where the catalog does not answer, as when tables are opened."""
        try:
            return self.load().state
        except ConnectionError as error:
            raise TableError("Cannot load 'db.t'") from error

    def stage(self, loaded: FakeLoaded, request: CommitRequest) -> tuple[FakeStaged, tuple[StepDone, ...]]:
        self._staged += 1
        staged, done = FakeCatalog().stage(loaded, request)
        staged = replace(staged, manifest=f"{self.run_id}.{self._staged}")
        self._ask("stage", staged.manifest)
        return staged, done

    def commit(self, loaded: FakeLoaded, staged: FakeStaged) -> None:
        self._ask("commit", staged)

    def discard(self, staged: FakeStaged) -> None:
        self._ask("discard", staged)

    def delete_data_files(self, paths: Iterable[str]) -> None:
        self._ask("delete", frozenset(paths))

    def write(self, paths: Collection[str]) -> None:
        """Put data files on storage, not visible yet."""
        self._ask("write", frozenset(paths))

    def _ask(self, verb: str, what: Any = None) -> Any:
        if self.asked is None:
            for answer in self._answers:
                if isinstance(answer, type) and issubclass(answer, BaseException):
                    raise answer("as the search has chosen")
                return answer
            self.asked = CatalogCall(verb, what)
        raise Pause


class SearchState(NamedTuple):
    """Where everybody is: the catalog, the answers that each program got, and what may still happen.

    `lives` counts how often each program was started; `answers` are None once it is gone for good. `clean` says that
    each program knows what became of its work.
    """

    catalog: FakeCatalog
    lives: tuple[int, ...]
    answers: tuple[tuple[int, ...] | None, ...]
    faults: int
    rivals: tuple[int, ...]
    clean: bool = True


@dataclass(frozen=True)
class Explored:
    """Numbers of interleavings, of different moments, and of choices in the longest interleaving."""

    interleavings: int
    moments: int
    longest: int


@dataclass
class Search:
    """All interleavings of some programs on one catalog, with at most `faults` bad answers and deaths in each.

    `programs` give the program of a run id; those in `replayed` (by place) are started again, under a new run id, when
    they die or fail, as Spark does. Each of `rivals`, other writers, comes once, at any moment. `check` looks at each
    moment at which all programs have ended: other writers and late requests may still come, or never.
    """

    programs: tuple[Callable[[str], Program], ...]
    check: Callable[[SearchState, tuple[Ended | None, ...]], None]
    start: State = field(default_factory=State)
    replayed: Collection[int] = ()
    rivals: tuple[Rival, ...] = ()
    faults: int = 0
    _numbers: dict[Any, int] = field(default_factory=dict)
    _keys: dict[Any, int] = field(default_factory=dict)
    _values: list[Any] = field(default_factory=list)
    _next: dict[Any, CatalogCall | Ended] = field(default_factory=dict)
    _seen: dict[Any, tuple[int, int]] = field(default_factory=dict)
    _trail: list[str] = field(default_factory=list)

    def run(self) -> Explored:
        """Walk them all; raise AssertionError with the choices that led to the first moment that is not right."""
        count = len(self.programs)
        catalog = FakeCatalog(self.start)
        catalog.data = set(self.start.live)
        begin = SearchState(catalog, (0,) * count, ((),) * count, self.faults, tuple(range(len(self.rivals))))
        try:
            interleavings, longest = self._walk(begin)
        except AssertionError as error:
            raise AssertionError(f"{error}, after {'; '.join(self._trail)}") from error
        return Explored(interleavings, len(self._seen), longest)

    def _walk(self, now: SearchState) -> tuple[int, int]:
        key = self._key(now)
        if key not in self._seen:
            interleavings = longest = 0
            ends = tuple(self._end(now, i) for i in range(len(now.answers)))
            if all(a is None or e is not None for a, e in zip(now.answers, ends, strict=True)):
                self.check(now, ends)
            for name, step in self._choices(now):
                self._trail.append(name)
                more, length = self._walk(step())
                self._trail.pop()
                interleavings, longest = interleavings + more, max(longest, length + 1)
            self._seen[key] = (interleavings or 1, longest)
        return self._seen[key]

    def _choices(self, now: SearchState) -> Iterator[tuple[str, Callable[[], SearchState]]]:
        for i, answers in enumerate(now.answers):
            asked = None if answers is None else self._next_of(i, now.lives[i], answers)
            if isinstance(asked, CatalogCall):
                bad = (*FAULTS[asked.verb], _DEATH) if now.faults else ()
                for how in ("", *bad):
                    yield f"{self._name(now, i)} {asked.verb} {how}", _bind(self._answered, now, i, asked, how)
        for rival in now.rivals:
            yield f"rival {rival}", _bind(self._rival, now, rival)
        for i in range(len(now.catalog.late)):
            yield f"late request {i} arrives", _bind(self._arrived, now, i)

    def _answered(self, now: SearchState, who: int, asked: CatalogCall, how: str) -> SearchState:
        if how:
            now = now._replace(faults=now.faults - 1, clean=now.clean and how in HARMLESS)
        if how == _DEATH:
            return self._restarted(now, who)
        catalog = now.catalog.fork()
        answer = self._number(_answer(catalog, asked, how))
        return self._settled(now._replace(catalog=catalog), who, (*(now.answers[who] or ()), answer))

    def _settled(self, now: SearchState, who: int, answers: tuple[int, ...]) -> SearchState:
        """With what the program does aside of everybody else done as well, and started again where it failed."""
        while isinstance(asked := self._next_of(who, now.lives[who], answers), CatalogCall) and asked.verb in ASIDE:
            _answer(now.catalog, asked, "")
            answers = (*answers, self._number(None))
        now = now._replace(answers=(*now.answers[:who], answers, *now.answers[who + 1 :]))
        if isinstance(asked, Ended) and asked.error is not None and who in self.replayed:
            return self._restarted(now, who)
        return now

    def _restarted(self, now: SearchState, who: int) -> SearchState:
        again = who in self.replayed
        lives = tuple(n + (again and i == who) for i, n in enumerate(now.lives))
        answers = (*now.answers[:who], () if again else None, *now.answers[who + 1 :])
        return now._replace(lives=lives, answers=answers)

    def _rival(self, now: SearchState, rival: int) -> SearchState:
        catalog = now.catalog.fork()
        self.rivals[rival](catalog)
        return now._replace(catalog=catalog, rivals=tuple(r for r in now.rivals if r != rival))

    def _arrived(self, now: SearchState, which: int) -> SearchState:
        catalog = now.catalog.fork()
        catalog.arrive(which)
        return now._replace(catalog=catalog)

    def _end(self, now: SearchState, who: int) -> Ended | None:
        answers = now.answers[who]
        asked = None if answers is None else self._next_of(who, now.lives[who], answers)
        return asked if isinstance(asked, Ended) else None

    def _next_of(self, who: int, life: int, answers: tuple[int, ...]) -> CatalogCall | Ended:
        key = (who, life, answers)
        if key not in self._next:
            run_id = f"{'abc'[who]}{life}"
            desk = ScriptedCatalog(run_id, [self._values[n] for n in answers])
            self._next[key] = _ask_or_end(self.programs[who](run_id), desk)
        return self._next[key]

    def _name(self, now: SearchState, who: int) -> str:
        return f"{'abc'[who]}{now.lives[who]}"

    def _number(self, value: Any) -> int:
        """A small number for an answer: equal answers have equal ones."""
        key = value.key if isinstance(value, State) else value
        if key not in self._numbers:
            self._numbers[key] = len(self._values)
            self._values.append(value)
        return self._numbers[key]

    def _key(self, now: SearchState) -> Any:
        catalog = self._keys.setdefault(now.catalog.key, len(self._keys))
        return catalog, now.lives, now.answers, now.faults, now.rivals, now.clean


def _bind(step: Callable[..., SearchState], *arguments: Any) -> Callable[[], SearchState]:
    return lambda: step(*arguments)


def _ask_or_end(program: Program, desk: ScriptedCatalog) -> CatalogCall | Ended:
    try:
        program(desk)
    except Pause:
        assert desk.asked is not None
        return desk.asked
    except (IcesizeError, KeyboardInterrupt) as error:
        return Ended(error)
    return Ended()


def _answer(catalog: FakeCatalog, asked: CatalogCall, how: str) -> Any:
    """What the catalog says, having done it or not; a class of exceptions stands for one."""
    try:
        if asked.verb == "load" and how == "ctrl-c":
            return KeyboardInterrupt
        if asked.verb == "load":
            catalog.loads = [how or "fresh"]
            return catalog.load().state
        if asked.verb == "commit":
            catalog.answers = [how or "ok"]
            return catalog.commit(FakeLoaded(asked.what.on), asked.what)
    except (CommitLost, CatalogBusy, CommitRefused, TimeoutError, ConnectionError, KeyboardInterrupt) as error:
        return type(error)
    if asked.verb == "discard":
        catalog.discard(asked.what)
    elif asked.verb == "delete":
        catalog.delete_data_files(asked.what)
        held = frozenset().union(*catalog.held.values())
        assert not asked.what & held, "a file that an older snapshot needs was deleted"
    elif asked.verb == "stage":
        catalog.manifests.add(asked.what)
    else:
        catalog.data |= asked.what
    return None
