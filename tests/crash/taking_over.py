"""One turn, held at a point of its owner, while another process takes it over: every request before and after
its intent is written, before its reply is, before each move, and before each commit.

The other process is another ``Store`` of the same home. It claims the turn with a rank, so that no check of
the owner's life is made; the tools count in a file how often they ran."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsm_agent import Agent, Turn, tool
from fsm_agent.errors import ConfigError, OwnershipLost, SessionBusy
from fsm_agent.fsm.journal import Exchange, Step
from fsm_agent.sessions.store import Claim, Store
from fsm_agent.sessions.store.fence import Fence, Fences
from fsm_agent.sessions.store.journal import Closing
from fsm_agent.sessions.store.journal.conversation_journal import ConversationLog
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from tests.crash.scene import assert_takes_the_place, logging_with
from tests.helpers.on_postgres import database_class
from tests.helpers.store_homes import look

Point = tuple[str, int]
SESSION = "s-1"
SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}, "poll": {"control": 0.005}}


@dataclass
class Held:
    """Calls ``then`` when its owner comes to ``point``; counts the points of a run without one."""

    point: Point | None = None
    then: Callable[[], Coroutine[Any, Any, None]] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reached: bool = False

    def comes(self, what: str) -> bool:
        self.counts[what] = self.counts.get(what, 0) + 1
        if self.point != (what, self.counts[what]):
            return False
        self.reached = True
        return True

    def at(self, what: str) -> None:
        """Block, as a frozen process does, while the other one works."""
        if self.comes(what) and self.then is not None:
            with ThreadPoolExecutor(1) as beside:
                beside.submit(asyncio.run, self.then()).result()


class HeldLog(ConversationLog):
    """Holds the owner before and after it asks the journal, before a reply is noted, before a move."""

    held = Held()

    async def asked(self, exchange: Exchange) -> Sequence[Any]:
        self.held.at("request")
        known = await super().asked(exchange)
        self.held.at("intent")
        return known

    async def got(self, exchange: Exchange, place: int, request: Any, reply: Any, seconds: float) -> None:
        self.held.at("reply")
        await super().got(exchange, place, request, reply, seconds)

    async def moved(self, step: Step) -> None:
        self.held.at("move")
        await super().moved(step)

    async def end(self, closing: Closing) -> None:
        self.held.at("end")
        await super().end(closing)


class Unwatched(Fences):
    """Whether a turn was lost is found out only when something is written for it."""

    def look(self, connection: Any) -> None:
        pass


class HeldStore(Store):
    """The old owner's."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, opened=HeldDatabase)
        self.fences = Unwatched()


class HeldDatabase(database_class()):
    """Holds its writer before a transaction. Each job has its own transaction, written at once."""

    held = Held()
    group = 1

    def submit(self, job: Any, alone: bool = False, late: bool = False) -> Future[Any]:
        future: Future[Any] = super().submit(job, alone)
        return future

    def commit_group(self, connection: Any, group: Any) -> bool:
        self.held.at("commit")
        done: bool = super().commit_group(connection, group)
        return done


def line(home: Path, words: str) -> None:
    with (home / "world.log").open("a") as file:
        file.write(words + "\n")


def ran(home: Path) -> list[str]:
    path = home / "world.log"
    return path.read_text().splitlines() if path.exists() else []


def answer(body: dict[str, Any]) -> Any:
    results = sum(row["role"] == "tool" for row in body["messages"])
    if results == 0:
        return tools(call("put", {"key": "a"}, "c1"), call("look", {}, "c2"))
    return tools(call("put", {"key": "b"}, "c3")) if results == 2 else text("done")


def agent_of(home: Path, store: Store, log: type[ConversationLog] = ConversationLog) -> Agent:
    @tool(effect="unsafe")
    def put(key: str) -> str:
        """Do what cannot be undone."""
        line(home, key)
        return f"put {key}"

    return logging_with(log)(
        ScriptedModel(repeat(answer)), tools=[put, look], toolsets=[], system_prompt="You are a test.",
        home=home, store=store, session_id=SESSION, context_window=100_000, clock=FakeClock(),
        settings=SETTINGS,
    )  # fmt: skip


def dumped(home: Path) -> dict[str, list[str]]:
    """All that the file says of the turn and its session, as text."""
    tables = (
        "sessions", "turns", "messages", "transitions", "effects", "transcripts", "usage",
        "unreported", "pending", "controls", "delegations",
    )  # fmt: skip
    with Store(home).database.reading() as c:
        return {name: sorted(map(repr, c.execute(f"SELECT * FROM {name}").fetchall())) for name in tables}


@dataclass
class Found:
    """What came of it. ``old`` and ``new``: the answer, or the error, of the first owner and of the one that
    took over; ``changed``: tables in which something is other than the new owner left it."""

    old: str = ""
    new: str = ""
    stored: bool = False
    taken: bool = False
    changed: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """An engine, or one with a fault: how the owner writes, how a turn is claimed and continued."""

    fence: type[Fence] = Fence
    log: type[HeldLog] = HeldLog
    store: type[Store] = Store
    new_log: type[ConversationLog] = ConversationLog


class Takeover:
    """The old owner's turn, and the other process that owns it from ``point`` on. ``how``: that process takes
    the turn over ``at once`` and continues it after its old owner has stopped; brings it to its ``end`` before
    the old owner continues; has ``looked`` at it first, and brings it to its end only after the old owner's
    next reply; or claims it ``late``, in an attempt that was overtaken."""

    def __init__(self, home: Path, engine: Engine, point: Point | None, how: str) -> None:
        self.home, self.engine, self.how = home, engine, how
        self.found, self.held = Found(), Held(point, self.take)
        self.old, self.new = HeldStore(home), engine.store(home)
        self.claim: Claim | None = None
        self.left: dict[str, list[str]] = {}
        self.looked: Turn | None = None

    async def run(self) -> Found:
        found, engine, held = self.found, self.engine, self.held

        class Log(engine.log):  # type: ignore[name-defined]
            def __init__(self, *given: Any, **named: Any) -> None:
                super().__init__(*given, **named)
                self.fence, self.held = engine.fence(self._turn.turn_id), held

        turn = agent_of(self.home, self.old, Log).start("go")
        self.turn_id = turn.id
        await turn.step_into()  # it has begun
        self.old.database.held = held  # type: ignore[attr-defined]
        try:
            result = await turn.arun()
            found.old, found.stored = result.final_response or "", result.stored
        except Exception as error:
            found.old = type(error).__name__
        await self.old.write(lambda c: None)
        if self.left:
            now = dumped(self.home)
            found.changed = tuple(name for name, rows in self.left.items() if rows != now[name])
        elif self.claim is not None and self.how == "at once":
            await self.go_on(self.resumed(self.claim))
        found.ran, found.counts = tuple(ran(self.home)), held.counts
        self.old.close()
        self.new.close()
        return found

    async def take(self) -> None:
        """At the point."""
        if self.how == "looked":
            for file in (self.home / "owners").glob("*.lock"):
                file.unlink()
            with contextlib.suppress(ConfigError):  # it has ended
                self.looked = self.resumed(None)
            self.held.point, self.held.then = ("reply", self.held.counts.get("reply", 0) + 1), self.follow
            return
        try:
            self.claim = await self.new.claim(self.turn_id, 0 if self.how == "late" else 1)
        except OwnershipLost:
            self.found.new = "OwnershipLost"
        if self.how == "end" and self.claim is not None:
            await self.go_on(self.resumed(self.claim))

    async def follow(self) -> None:
        """At the next reply: it is taken over as it was looked at, or looked at again."""
        assert self.looked is not None
        try:
            await self.go_on(self.looked)
        except SessionBusy:  # it has moved since
            await self.go_on(self.resumed(None))

    def resumed(self, claim: Claim | None) -> Turn:
        return agent_of(self.home, self.new, self.engine.new_log).resume(self.turn_id, claim=claim)

    async def go_on(self, turn: Turn) -> None:
        self.found.new = (await turn.arun()).final_response or ""
        self.found.taken, self.left = True, dumped(self.home)


def faults(found: Found, point: Point, how: str) -> list[str]:
    """What is wrong with it, in words."""
    often = {key: found.ran.count(key) for key in found.ran if found.ran.count(key) > 1}
    wrong = [f"{key} was put {times} times" for key, times in often.items()]
    wrong += [f"the rows of the new owner were changed in {found.changed}"] if found.changed else []
    if how == "late" or not found.taken:
        wrong += [] if (found.old, found.stored) == ("done", True) else [f"the owner: {found.old}"]
        wrong += [] if how != "late" or found.new in ("", "OwnershipLost") else [f"late: {found.new}"]
    else:
        wrong += [] if found.old == "OwnershipLost" else [f"the old owner ended with {found.old}"]
        wrong += [] if found.new == "done" else [f"the new owner ended with {found.new}"]
    return [f"{point}, {how}: {one}" for one in wrong]


class NoFence(Fence):
    """Compares nothing before a write, and reports no loss."""

    def refuse(self, connection: Any) -> None:
        pass

    def lose(self, why: str) -> None:
        pass


class FenceBehind(HeldLog):
    """The epoch is compared when the rows are written already."""

    def _write(self, c: Any, jobs: Any) -> None:
        for job in jobs:
            job(c)
        self.fence.refuse(c)


class ReadBefore(ConversationLog):
    """What is known of the visit is what was read before the turn was claimed."""

    def began(self, recording: Any = None) -> None:
        pass


class NoRank(Store):
    """Every claim is the newest."""

    async def claim(self, turn_id: str, rank: int | None = None, *given: Any, **named: Any) -> Claim | None:
        return await super().claim(turn_id, None if rank is None else rank + 1, *given, **named)


MUTANTS: dict[str, tuple[Engine, str, str, str]] = {
    "no fence": (Engine(fence=NoFence), "end", "end", "rows of the new owner were changed"),
    "fence after the notes": (Engine(log=FenceBehind), "end", "reply", "the old owner ended with"),
    "read before claim": (Engine(new_log=ReadBefore), "looked", "request", "was put 2 times"),
    "no rank": (Engine(store=NoRank), "late", "reply", "the owner: OwnershipLost"),
}
"""Engines with one fault each, how the turn is taken over that shows it, at which points, and what is seen."""
assert_takes_the_place(NoFence, FenceBehind, ReadBefore, NoRank)
