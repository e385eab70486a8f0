"""Backtests of many turns: which turns, in how many processes, and what came of them."""

# Workers are processes of their own that are given JSON lines and answer in JSON lines: the states of another
# revision are imported there and nowhere else, and nothing is pickled. Turns are handed out in small pieces,
# so that a long one holds up only itself.

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypedDict, Unpack

from fsm_agent.backtest.playback import Change, Played
from fsm_agent.backtest.verdict import (
    KINDS,
    Kind,
    Verdict,
    judge,
    play_unchanged,
    read,
    unreadable,
    verdict_of,
)
from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.sessions.store.importing import import_lines
from fsm_agent.sessions.store.stored_sessions import find_session
from fsm_agent.settings import Settings, dot_names
from fsm_agent.support.files import home_of
from fsm_agent.support.redaction import bare_environment

PIECE = 8
"""Turns that a worker is given at a time."""
MOST_DAYS = 100_000
FEW = 40
"""Turns that are not worth another process."""


@dataclass(frozen=True, slots=True)
class Found:
    """The verdicts of a backtest, in the order of the turns. ``change`` says in words what was changed."""

    change: str
    verdicts: Sequence[Verdict]

    @property
    def total(self) -> int:
        """How many turns there were."""
        return len(self.verdicts)

    @property
    def counts(self) -> Mapping[Kind, int]:
        """How many turns have each verdict."""
        counted = Counter(one.kind for one in self.verdicts)
        return {kind: counted[kind] for kind in KINDS}

    def of(self, *kinds: Kind) -> list[Verdict]:
        """The verdicts of these kinds."""
        return [one for one in self.verdicts if one.kind in kinds]


class Chosen(TypedDict, total=False):
    """Which turns of a store."""

    session: str | None
    exit: str | None
    days: float | None


@dataclass(frozen=True, slots=True)
class Backtest:
    """Recorded turns: ``turns`` of ``store``, oldest first. ``masked``: they come from a file in which
    secrets are hidden."""

    store: Store
    turns: Sequence[str]
    masked: bool = False

    @classmethod
    def of_home(cls, home: Path | str | None = None, **chosen: Unpack[Chosen]) -> Backtest:
        """The turns of a home, by default the usual one. Raises ``ConfigError``."""
        return cls.of(store_for(home_of(home, os.environ)), **chosen)

    @classmethod
    def of(cls, store: Store, **chosen: Unpack[Chosen]) -> Backtest:
        """The turns of a store that have ended: of one ``session``, with one ``exit`` reason, of the last
        ``days``, or all. Raises ``ConfigError``."""
        session, exit, days = chosen.get("session"), chosen.get("exit"), chosen.get("days")
        if days is not None and not 0 < days < MOST_DAYS:
            raise ConfigError("--days is out of range", days, f"more than 0, less than {MOST_DAYS:,}")
        found = find_session(store, session) if session is not None else None
        since = None if days is None else store.now() - days * 86_400
        turns = store.database.select(_TURNS, found, found, exit, exit, since, since)
        return cls(store, [turn for (turn,) in turns])

    @classmethod
    @contextmanager
    def of_file(cls, path: Path | str) -> Iterator[Backtest]:
        """The turns of an exported file, for as long as the block runs. Nothing in it is run. Raises
        ``ConfigError`` for a damaged one."""
        try:
            lines = Path(path).read_text("utf-8").splitlines()
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"the file cannot be read ({error})", str(path), "a file of sessions export"
            ) from None
        with tempfile.TemporaryDirectory(prefix="fsm-agent-") as folder:
            store = Store(Path(folder))
            import_lines(store, lines, str(path))
            masked = bool(json.loads(lines[0]).get("masked"))
            turns = store.database.select(_TURNS, *[None] * 6)
            try:
                yield cls(store, [turn for (turn,) in turns], masked)
            finally:
                store.database.close()

    def sample(self, number: int, seed: int = 0) -> Backtest:
        """A random choice of ``number`` turns; all of them if there are fewer."""
        most = min(number, len(self.turns))
        chosen = set(random.Random(seed).sample(range(len(self.turns)), most))  # noqa: S311 - no secret
        return replace(self, turns=[turn for place, turn in enumerate(self.turns) if place in chosen])

    def run(
        self,
        change: Change | None = None,
        *,
        states: Path | None = None,
        jobs: int | None = None,
        heard: Callable[[Verdict], None] = lambda verdict: None,
        known: Mapping[str, Verdict] | None = None,
    ) -> Found:
        """Judge every turn. ``states``: a folder with another ``fsm_agent_states``. ``jobs``: processes, by
        default one a core. ``heard`` gets each verdict as it comes; ``known``: verdicts of an earlier run,
        which are not found again. Raises ``ConfigError`` for a change that cannot be made."""
        change = change or Change()
        self.refuse(change)
        left = [turn for turn in self.turns if turn not in (known or {})]
        jobs = min(jobs or os.cpu_count() or 1, max(1, len(left) // FEW))
        found = dict(known or {})

        def keep(verdict: Verdict) -> None:
            found[verdict.turn] = verdict
            heard(verdict)

        if jobs == 1 and states is None:
            for turn in left:
                keep(asyncio.run(judge(self.store, turn, change, masked=self.masked)))
        else:
            self._with_workers(left, change, jobs, states, keep)
        return Found(describe_change(change, states), [found[turn] for turn in self.turns])

    def refuse(self, change: Change) -> None:
        """Raise ``ConfigError`` for a change that no turn can be played with."""
        Settings.of(change.settings)
        if not change.tools:
            return
        names = {str(name) for (name,) in self.store.database.select(_CALLED)}
        for name in change.tools:
            if name not in names:
                raise ConfigError(
                    "no recorded turn calls this tool", name, ", ".join(sorted(names)) or "none calls any"
                )

    def _with_workers(
        self,
        turns: Sequence[str],
        change: Change,
        jobs: int,
        states: Path | None,
        keep: Callable[[Verdict], None],
    ) -> None:
        """Judge in other processes. Raises ``ConfigError`` when one of them fails."""
        pieces: SimpleQueue[list[str]] = SimpleQueue()
        for first in range(0, len(turns), PIECE):
            pieces.put(list(turns[first : first + PIECE]))
        failed: list[str] = []
        lock = threading.Lock()

        def drive() -> None:
            try:
                with _Worker(self._order(change), states) as one:
                    while not failed and (piece := _next(pieces)):
                        for verdict in self._verdicts(piece, one.answers(piece), states):
                            with lock:
                                keep(verdict)
            except Exception as error:  # it is raised below: no verdict is missing in silence
                failed.append(str(error))

        drivers = [threading.Thread(target=drive, daemon=True) for _ in range(jobs)]
        for one in drivers:
            one.start()
        for one in drivers:
            one.join()
        if failed:
            raise ConfigError(
                "a process of the backtest ended early", failed[0], "states that can be imported"
            )

    def _verdicts(
        self, turns: Sequence[str], answers: Iterable[Any], states: Path | None
    ) -> Iterator[Verdict]:
        for turn, answer in zip(turns, answers, strict=True):
            if states is None:
                yield Verdict.from_dict(answer)
            elif isinstance(recorded := read(self.store, turn), str):
                yield unreadable(turn, recorded)
            else:
                base, refused = asyncio.run(play_unchanged(recorded, masked=self.masked))
                yield refused or verdict_of(recorded, base, Played.from_dict(answer))

    def _order(self, change: Change) -> dict[str, Any]:
        return {
            "home": str(self.store.home),
            "database_url": self.store.database_url,
            "masked": self.masked,
            "change": change.to_dict(),
        }


def _next(pieces: SimpleQueue[list[str]]) -> list[str]:
    try:
        return pieces.get_nowait()
    except Empty:
        return []


_TURNS = (
    "SELECT id FROM turns WHERE ended IS NOT NULL AND (? IS NULL OR session = ?) AND (? IS NULL OR exit = ?)"
    " AND (? IS NULL OR began >= ?) ORDER BY began, rowid"
)


_CALLED = "SELECT DISTINCT name FROM effects WHERE kind = 'RunTool'"


def describe_change(change: Change, states: Path | None = None) -> str:
    """A change in words."""
    parts = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in dot_names(change.settings).items()
    ]
    parts += ["another system prompt"] if change.prompt is not None else []
    parts += [
        f"{'without' if other is None else 'another schema of'} {name}"
        for name, other in change.tools.items()
    ]
    if change.machine is not None:
        parts.append(f"table {change.machine.table.digest} (recorded: {TURN.digest})")
    parts += ["other states"] if states is not None else []
    return ", ".join(parts) or "nothing changed"


def identity(change: Change, states: Path | None = None) -> str:
    """A digest of a change, by which a file of verdicts knows what it is of."""
    parts = [change.to_dict(), TURN.digest]
    if states is not None:
        parts += [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(states.rglob("*.py"))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class _Worker:
    """A process that plays the turns that it is given."""

    def __init__(self, order: Mapping[str, Any], states: Path | None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        roots = [str(states.resolve())] if states is not None else []
        path = os.pathsep.join((*roots, *(one for one in sys.path if one)))
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-B", "-m", "fsm_agent.backtest", *roots],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=bare_environment() | {"PYTHONPATH": path},
            text=True,
        )
        with suppress(BrokenPipeError):
            self._send(order)

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with ExitStack() as stack:
            stack.callback(self._process.wait)
            stack.callback(self._process.kill)
            stack.callback(self._process.stdout.close)
            stack.callback(self._errors.close)
            stack.callback(self._process.stdin.close)

    def answers(self, turns: list[str]) -> Iterator[Any]:
        """One JSON value for each of the turns. Raises ``EOFError`` with the last line that the process wrote
        when it ends before that."""
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, which the first answer says
            self._send(turns)
        for _ in turns:
            if not (line := self._process.stdout.readline()):
                raise EOFError(self._last_words())
            yield json.loads(line)

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"exit status {self._process.returncode}"

    def _send(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()
