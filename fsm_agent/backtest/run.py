"""Backtests of many turns: the choice of turns, worker processes, the verdicts, and their report."""

from __future__ import annotations

import asyncio
import hashlib
import html
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
    Side,
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
from fsm_agent.support.texts import escape_markdown

# Workers are processes that exchange JSON lines: only they import the states of another revision, and nothing
# is pickled. Turns are handed out in small batches, so that a long one delays few others.


PIECE = 8
"""Turns in one batch for a worker."""
MOST_DAYS = 100_000
FEW = 40
"""Turns that justify another process."""


@dataclass(frozen=True, slots=True)
class Found:
    """The verdicts of a backtest, in the order of the turns. ``change`` describes the change in words."""

    change: str
    verdicts: Sequence[Verdict]

    @property
    def total(self) -> int:
        """The number of turns."""
        return len(self.verdicts)

    @property
    def counts(self) -> Mapping[Kind, int]:
        """The number of turns with each verdict."""
        counted = Counter(one.kind for one in self.verdicts)
        return {kind: counted[kind] for kind in KINDS}

    def of(self, *kinds: Kind) -> list[Verdict]:
        """Return the verdicts of these kinds."""
        return [one for one in self.verdicts if one.kind in kinds]


class Chosen(TypedDict, total=False):
    """A selection of turns of a store."""

    session: str | None
    exit: str | None
    days: float | None


@dataclass(frozen=True, slots=True)
class Backtest:
    """Recorded turns: ``turns`` of ``store``, oldest first. ``masked``: they come from a file with hidden
    secrets."""

    store: Store
    turns: Sequence[str]
    masked: bool = False

    @classmethod
    def of_home(cls, home: Path | str | None = None, **chosen: Unpack[Chosen]) -> Backtest:
        """Select turns of a home, by default the usual one. Raises ``ConfigError``."""
        return cls.of(store_for(home_of(home, os.environ)), **chosen)

    @classmethod
    def of(cls, store: Store, **chosen: Unpack[Chosen]) -> Backtest:
        """Select finished turns of a store: of one ``session``, with one ``exit`` reason, of the last
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
        """Yield the turns of an exported file while the block runs. Executes nothing from it. Raises
        ``ConfigError`` for a damaged file."""
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
        """Return a random sample of ``number`` turns; all of them if there are fewer."""
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
        default one per core. ``heard`` receives each verdict when it is found; ``known``: verdicts of an
        earlier run, which are reused. Raises ``ConfigError`` for an impossible change."""
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
        """Raise ``ConfigError`` for a change with which no turn can be played."""
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
        """Judge in other processes. Raises ``ConfigError`` if one of them fails."""
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
            except Exception as error:  # raised below, so that no verdict is silently missing
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
    """Describe a change in words."""
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
    """Return a digest of a change, which identifies it in a file of verdicts."""
    parts = [change.to_dict(), TURN.digest]
    if states is not None:
        parts += [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(states.rglob("*.py"))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class _Worker:
    """A process that plays turns on request."""

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
        """Yield one JSON value for each turn. Raises ``EOFError`` with the last line that the process wrote
        if it ends early."""
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended; reading the first answer reports that
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


# ----------------------------------------------------------------------------------------------------
# The report of a backtest: Markdown for a pull request, one HTML page, JSON.


ORDER: Sequence[Kind] = ("differs", "missing", "requests", "refused")
"""Kinds in order of interest to a reader."""
ALL_THE_SAME = "All recorded turns take the same moves"
MOST = 20
"""Maximum groups of one kind in a report; the last line counts the rest."""


@dataclass(frozen=True, slots=True)
class Group:
    """Turns with the same verdict for the same reason. ``what``: the reason in one line; ``first``: the
    oldest of them."""

    kind: Kind
    what: str
    first: Verdict
    count: int


def groups(found: Found, *kinds: Kind) -> list[Group]:
    """Return the groups of these kinds, largest first."""
    by_reason: dict[tuple[Kind, str], list[Verdict]] = {}
    for verdict in found.of(*kinds):
        by_reason.setdefault((verdict.kind, reason(verdict)), []).append(verdict)
    made = [Group(kind, what, turns[0], len(turns)) for (kind, what), turns in by_reason.items()]
    return sorted(made, key=lambda group: -group.count)


def reason(verdict: Verdict) -> str:
    """Return the reason for a turn's verdict in one line."""
    if verdict.kind != "differs":
        return verdict.words[0] if verdict.words else ""
    return f"{verdict.state}: {move(verdict.recorded)}, now {move(verdict.now)}"


def move(side: Side | None) -> str:
    """Describe a move: its row, and its destination."""
    if side is None:
        return "no move"
    row = side.row.partition(".")[2] or side.row
    return f"{row} → {side.dest}{f' ({side.exit})' if side.exit else ''}"


def guards(side: Side | None) -> str:
    """List the guards evaluated for a move, in order."""
    return ", ".join(f"{label}: {'yes' if value else 'no'}" for label, value in side.guards) if side else ""


def headline(found: Found) -> str:
    """Return the outcome in one sentence."""
    other = len(found.of("differs", "missing"))
    judged = found.total - found.counts["refused"]
    if not judged:
        return f"None of {found.total:,} recorded turns can be played."
    what = f"{other:,} of {judged:,} turns take different moves" if other else ALL_THE_SAME
    requests = found.counts["requests"]
    return f"{what}{f'; {requests:,} send different requests' if requests else ''}."


def as_json(found: Found, live: Mapping[str, Any] | None = None) -> str:
    """Return the verdicts as JSON; ``live``: the outcome of forks."""
    summary = {"change": found.change, "turns": found.total, "counts": found.counts}
    more = {} if live is None else {"live": live}
    verdicts = [one.to_dict() for one in found.verdicts]
    return json.dumps({**summary, "verdicts": verdicts, **more}, ensure_ascii=False)


def as_markdown(found: Found) -> str:
    """Return the report for a pull request."""
    lines = [f"### Backtest: {escape_markdown(found.change)}", "", f"**{headline(found)}**", ""]
    lines += ["| turns | |", "|---:|---|"]
    lines += [f"| {found.counts[kind]:,} | {words} |" for kind, words in KINDS.items() if found.counts[kind]]
    for kind in ORDER:
        listed = groups(found, kind)
        if not listed:
            continue
        lines += ["", f"#### {KINDS[kind].capitalize()}", "", *_table(kind)]
        lines += [_md_row(group) for group in listed[:MOST]]
        if len(listed) > MOST:
            lines.append(f"\n{len(listed) - MOST:,} more kinds of difference are not listed.")
    return "\n".join(lines) + "\n"


def _table(kind: Kind) -> list[str]:
    if kind == "differs":
        return ["| turns | state | recorded | now | for example |", "|---:|---|---|---|---|"]
    return ["| turns | what | for example |", "|---:|---|---|"]


def _md_row(group: Group) -> str:
    one = group.first
    place = f"`{one.turn}`{f', move {one.at}' if one.at else ''}"
    if group.kind != "differs":
        return f"| {group.count:,} | {escape_markdown(group.what)} | {place} |"
    sides = (
        "<br>".join(map(escape_markdown, (move(side), guards(side)))) for side in (one.recorded, one.now)
    )
    return f"| {group.count:,} | {one.state} | {' | '.join(sides)} | {place} |"


def as_html(found: Found) -> str:
    """Return the report as one self-contained page: each differing turn with both sides next to each
    other."""
    counted = "".join(
        f"<tr><td class=n>{found.counts[kind]:,}<td>{words}"
        for kind, words in KINDS.items()
        if found.counts[kind]
    )
    parts = [
        _HEAD,
        f"<h1>Backtest: {html.escape(found.change)}</h1><p class=lead>{html.escape(headline(found))}",
    ]
    parts.append(f"<table>{counted}</table>")
    for kind in ORDER:
        if found.counts[kind]:
            parts.append(f"<h2>{KINDS[kind].capitalize()}</h2>")
            parts += _html_groups(groups(found, kind), found)
    return "\n".join(parts) + "\n"


def _html_groups(listed: Sequence[Group], found: Found) -> Iterator[str]:
    for number, group in enumerate(listed):
        turns = [one for one in found.of(group.kind) if reason(one) == group.what]
        shown = "".join(map(_html_turn, turns[:MOST]))
        more = f"<p>{len(turns) - MOST:,} more turns" if len(turns) > MOST else ""
        summary = f"{group.count:,} × {html.escape(group.what)}"
        yield f"<details{' open' if not number else ''}><summary>{summary}</summary>{shown}{more}</details>"


def _html_turn(one: Verdict) -> str:
    head = f"<h3>{html.escape(one.asked)} <code>{html.escape(one.turn)}</code></h3>"
    if one.kind == "differs":
        sides = "".join(_html_side(*side) for side in (("recorded", one.recorded), ("now", one.now)))
        head += f"<p>Move {one.at} of {one.moves}, in {html.escape(one.state)}<div class=sides>{sides}</div>"
    words = "".join(f"<li>{html.escape(line)}" for line in one.words)
    more = one.requests - len(one.words)
    rest = f"<p>{one.requests:,} requests differ" if one.kind != "refused" and more > 0 else ""
    return f"<article>{head}{f'<ul>{words}</ul>' if words else ''}{rest}</article>"


def _html_side(name: str, side: Side | None) -> str:
    looked = "".join(
        f"<li class={'yes' if value else 'no'}>{html.escape(label)}: {'yes' if value else 'no'}"
        for label, value in (side.guards if side else ())
    )
    return f"<section><b>{name}</b><p>{html.escape(move(side))}<ul>{looked}</ul></section>"


_HEAD = """<!doctype html><html lang=en><meta charset=utf-8>
<meta name=viewport content="width=device-width"><title>Backtest</title><style>
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}
td{padding:.1rem .8rem .1rem 0}
.n{text-align:right;font-variant-numeric:tabular-nums}
.lead{font-size:1.2rem}
summary{cursor:pointer;font-weight:600;margin:.6rem 0}
article{margin:0 0 1rem 1rem}
h3{font-size:1rem;margin:.8rem 0 .2rem}
code{font-size:.85em;opacity:.75}
.sides{display:flex;flex-wrap:wrap;gap:1rem}
section{flex:1 1 18rem;border:1px solid #8886;border-radius:6px;padding:.4rem .8rem}
section p{margin:.2rem 0}
ul{margin:.2rem 0;padding-left:1.2rem}
.yes::marker{content:"✓ "}
.no::marker{content:"✗ "}
</style>"""
