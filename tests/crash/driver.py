"""Runs one case after the other, each in processes of its own, and prints what came of it as JSON lines.

Started as a program of its own, and warmed up by one whole turn whose threads have ended: every process is a
fork of this one, so that thousands of them cost no import. Files, connections and threads are of the fork
alone."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, get_args

from fsm_agent import (
    Agent,
    Guardrail,
    Hooks,
    RequestChange,
    ResultLater,
    Rewrite,
    RunContext,
    TurnSuspended,
    tool,
)  # fmt: skip
from fsm_agent.conversation.effects import CallModel
from fsm_agent.conversation.effects import Point as NamedPoint
from fsm_agent.extension import Extension
from fsm_agent.hooks import ShownCall, ShownRequest
from fsm_agent.request import Effect, Request
from fsm_agent.sessions.store import Store
from fsm_agent.settings import Settings
from fsm_agent.support.threads import WORKERS, in_a_loop
from fsm_agent.testing import ScriptedModel, repeat, text
from tests.crash.mutants import MUTANTS
from tests.crash.scene import (
    HERE,
    HISTORY,
    SESSION,
    Crash,
    CrashingDatabase,
    GroupingDatabase,
    PromptDatabase,
    agent_of,
    note,
    world,
)
from tests.helpers.on_postgres import same_database
from tests.helpers.sample import sampled

Result = dict[str, Any]
Point = tuple[str, int]
MEMORY = Path("/dev/shm")
"""Files that are never flushed to a disk: a process that is killed leaves the same in them, and need not
wait."""


def warm_up() -> None:
    """Run the turn once in this process, and one that another process left, on the loop that forks use, and wait
    until nothing of them is left that a fork could trip over. What is imported and compiled meanwhile no fork
    has to."""
    with folder() as home:
        agent = agent_of(home, Crash())
        told(agent, in_a_loop(agent.arun("please", conversation_history=HISTORY)))
        agent.store.close()
    with folder() as home:
        in_process(partial(first, home, Crash(("tool", 1))))
        agent = agent_of(home, Crash())
        told(agent, in_a_loop(agent.resume(SESSION).arun()))
        agent.store.close()
        del agent
    while threading.active_count() > 1:
        WORKERS.rest()
        time.sleep(0.01)
    gc.collect()
    gc.freeze()  # forks share these pages


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty directory; in memory where there is such a file system."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made)


@contextlib.contextmanager
def copied(home: Path) -> Iterator[Path]:
    with folder() as place:
        copy = Path(shutil.copytree(home, place / "home"))
        same_database(home, copy)
        yield copy


def in_process(work: Callable[[], Result]) -> tuple[int, Result]:
    """(signal that ended it or 0, what it found)."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        code = 0
        try:
            said = work()
        except BaseException as error:
            said, code = {"error": f"{type(error).__name__}: {error}"}, 1
        with os.fdopen(into, "w") as file:
            json.dump(said, file)
        os._exit(code)
    os.close(into)
    with os.fdopen(out) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, json.loads(text) if text else {}


def first(home: Path, crash: Crash, durability: str = "full", **options: Any) -> Result:
    """The turn from its beginning."""
    agent = agent_of(home, crash, durability, **options)
    result = agent.run_conversation("please", conversation_history=HISTORY)
    return {**told(agent, result), "counts": dict(crash.counts)}


def again(home: Path, crash: Crash, durability: str = "full", **options: Any) -> Result:
    """Continue after a crash: resume an unfinished turn, start over if none had begun, look up an ended
    one."""
    heard: list[str] = []
    agent = agent_of(home, crash, durability, heard=heard, **options)
    turns = agent.journal.recent(session=SESSION)
    if not turns:
        result = agent.run_conversation("please", conversation_history=HISTORY)
    elif turns[0].ended is not None:
        return ended_turn(agent, turns[0].id, heard)
    else:
        result = agent.resume(SESSION).run()
    return {**told(agent, result), "heard": heard, "counts": dict(crash.counts)}


def ended_turn(agent: Agent, turn_id: str, heard: list[str]) -> Result:
    """What the journal says came of a turn."""
    said = agent.journal.result(turn_id) or {}
    return {
        "final": said["final_response"],
        "exit": said["turn_exit_reason"],
        "messages": [row.to_dict() for row in Store(agent.home).session(SESSION).rows],
        "heard": heard,
        "paid": agent.journal.snapshot(turn_id)["counts"]["attempts"],
        "ended": True,
    }


def anew(home: Path, crash: Crash) -> Result:
    """Send another message after a crash, instead of continuing what it left."""
    heard: list[str] = []
    agent = agent_of(home, crash, heard=heard, port=ScriptedModel(repeat(text("all done"))))
    result = agent.run_conversation("and now?")
    left = len(agent.journal.recent(unfinished=True))
    return {**told(agent, result), "heard": heard, "counts": dict(crash.counts), "left": left}


def told(agent: Any, result: Any) -> Result:
    """The outcome that the turn reports, and the one that another store reads in the file."""
    other = Store(agent.home)
    fresh = [row.to_dict() for row in other.session(result.session_id).rows]
    summed = "SELECT TOTAL(input + output) FROM usage WHERE turn = ?"
    [(tokens,)] = other.database.select(summed, result.turn_id)
    other.close()
    states = [visit.state for visit in result.states]
    return {
        "final": result.final_response, "exit": result.turn_exit_reason.value, "messages": result.messages,
        "stored": fresh, "states": states, "problems": result.cleanup_errors, "turn": result.turn_id,
        "paid": agent.journal.snapshot(result.turn_id)["counts"]["attempts"],
        "tokens": [result.usage_turn.total, int(tokens)],
    }  # fmt: skip


def points(counts: dict[str, int]) -> list[Point]:
    """Every point of a run with these counts of things that happened."""
    kinds = ("before", "after", "model", "tool")
    return [(what, number) for what in kinds for number in range(1, counts.get(what, 0) + 1)]


Work = Callable[[Path, Crash], Result]
"""What a process does in a home until it ends or is killed."""


def recovery(killed: Path, go_on: Work, then: Point | None, signals: list[int]) -> Result:
    """Continue in a copy of what a kill left. With ``then``, kill that run at this point, and continue once
    more."""
    with copied(killed) as home:
        if then is not None:
            signals = [*signals, in_process(partial(go_on, home, Crash(then)))[0]]
        signal, found = in_process(partial(go_on, home, Crash()))
        return {"then": then, "signals": [*signals, signal], **found, "world": world(home)}


def undisturbed(work: Work, where: AbstractContextManager[Path]) -> Result:
    """What comes of it, which is printed first."""
    with where as home:
        signal, found = in_process(partial(work, home, Crash()))
        return {"signals": [signal], **found, "world": world(home)}


def anywhere(found: Result) -> list[Point]:
    return points(found.get("counts", {}))


def killed(
    begin: Work,
    go_on: Work,
    counts: dict[str, int],
    *,
    every: int | None = None,
    then: Callable[[Result], list[Point]] = lambda found: [],
    whole: Path | None = None,
) -> None:
    """``begin``, killed at a sample of its points (or one in ``every``) in a home of its own or in a copy of
    one, and then continued; and again, with the continuation killed at the points that ``then`` names."""
    wanted = points(counts)
    for point in sampled(wanted, "killed") if every is None else wanted[::every]:
        with copied(whole) if whole else folder() as home:
            signals = [in_process(partial(begin, home, Crash(point)))[0]]
            say({"point": point, **(found := recovery(home, go_on, None, signals))})
            for second in then(found):
                say({"point": point, **recovery(home, go_on, second, signals)})


def matrix(durability: str, database: type[CrashingDatabase], twice: bool, every: int) -> None:
    """One in ``every`` points of the turn; or a sample of them, and every point of the recovery from each."""
    begin, go_on = (partial(work, durability=durability, database=database) for work in (first, again))
    say({"base": (base := undisturbed(begin, folder()))})
    if twice:
        killed(begin, go_on, base["counts"], then=anywhere)
    else:
        killed(begin, go_on, base["counts"], every=every)


def asking(*given: Any, tools: Any, callbacks: Any, **options: Any) -> Agent:
    """An agent whose unsafe tool waits for a person."""

    def person(request: Any) -> str:
        note(HERE.home, "asked", request.name)
        return "once"

    put, *others = tools
    asks = [replace(put, spec=replace(put.spec, approval="ask")), *others]
    return Agent(*given, tools=asks, callbacks={**callbacks, "approval": person}, **options)


class Watching(Hooks):
    """Changes all that it may."""

    def before_request(self, context: RunContext[Any], request: ShownRequest) -> RequestChange:
        return RequestChange({"temperature": 0.5})

    def before_tool(self, context: RunContext[Any], call: ShownCall) -> dict[str, Any]:
        return {**call.arguments, "key": f"{call.arguments['key']}!"}

    def after_tool(self, context: RunContext[Any], call: ShownCall, result: str, status: str) -> str:
        return f"{result} ({status})"


async def louder(context: RunContext[Any], words: str) -> Rewrite:
    return Rewrite(f"{words}!")


async def passes(context: RunContext[Any], words: str) -> None:
    await asyncio.sleep(0)


def hooked(*given: Any, **options: Any) -> Agent:
    """An agent with hooks and guardrails."""
    guards = [louder, Guardrail(passes, beside=True)]
    return Agent(*given, hooks=[Watching()], input_guardrails=guards, output_guardrails=[louder], **options)


def limited(*given: Any, settings: Settings, **options: Any) -> Agent:
    """An agent with limits that the turn does not reach."""
    most = {"usd": 10, "tokens": 1_000_000, "seconds": 600}
    limits = dict.fromkeys(("turn", "tree", "session", "day"), most)
    prices = {"scripted:scripted": {"input": 1, "output": 2}}
    asked = Settings.of({"limits": limits, "prices": prices})
    kept = {"limits": asked.limits, "prices": asked.prices}
    return Agent(*given, settings=settings.model_copy(update=kept), **options)


def typed(*given: Any, **options: Any) -> Agent:
    """An agent whose answers are of a type: any text is, when it is checked."""
    return Agent(given[0], output_type=int | str, **options)


@dataclass(frozen=True)
class Stamp(Request):
    reply: ClassVar[type] = int
    effect: ClassVar[Effect] = "unsafe"

    at: str

    def in_doubt(self) -> int:
        return -1


@dataclass(frozen=True)
class Tally(Request):
    reply: ClassVar[type] = str

    at: str


class AsksEverywhere(Extension):
    """What cannot be undone, and what may be done twice under one key, at each named point."""

    name = "everywhere"
    requests = (CallModel,)

    def asks(self) -> Mapping[NamedPoint, list[Request]]:
        return {point: [Stamp(point), Tally(point)] for point in get_args(NamedPoint)}

    async def perform(self, request: Any, turn: Any, key: str) -> Any:
        what = "stamp" if isinstance(request, Stamp) else "tally"
        note(HERE.home, "asked", what, request.at, key)
        HERE.crash("tool")
        return 1 if what == "stamp" else request.at

    async def around(self, request: Any, turn: Any, call_next: Any) -> Any:
        note(HERE.home, "read", str(self.reply_to(Stamp, turn)), str(self.reply_to(Tally, turn)))
        return await call_next(request)


def extended(*given: Any, **options: Any) -> Agent:
    """An agent with an extension that asks at each named point."""
    return Agent(*given, extensions=[AsksEverywhere()], **options)


KINDS = {"asking": asking, "hooked": hooked, "typed": typed, "limited": limited, "extended": extended}


def once(kind: Callable[..., Agent]) -> None:
    """The turn of another kind of agent."""
    begin, go_on = (partial(work, kind=kind) for work in (first, again))
    say({"base": (base := undisturbed(begin, folder()))})
    killed(begin, go_on, base["counts"])


def suspended() -> None:
    """The turn whose unsafe tool waits for approval, then for its result: killed at every point of asking,
    answering, and continuing, and again at every point of the recovery."""
    say({"base": (base := undisturbed(to_the_end, folder()))})
    killed(to_the_end, to_the_end, base["counts"], then=anywhere)


def to_the_end(home: Path, crash: Crash) -> Result:
    """Do what is next: begin the turn, answer what it waits for, continue it, look up its outcome."""
    heard: list[str] = []
    while True:
        agent = agent_of(home, crash, heard=heard, kind=waiting)
        turns = agent.journal.recent(session=SESSION)
        try:
            if not turns:
                result = agent.run_conversation("please", conversation_history=HISTORY)
            elif turns[0].ended is not None:
                return ended_turn(agent, turns[0].id, heard) | {"counts": dict(crash.counts)}
            else:
                for item in agent.pending():
                    agent.answer(item.id, "once" if item.kind == "approval" else "put a")
                result = agent.resume(SESSION).run()
        except TurnSuspended:
            continue
        return {**told(agent, result), "heard": heard, "counts": dict(crash.counts)}


def waiting(*given: Any, tools: Any, settings: Any, **options: Any) -> Agent:
    """An agent whose unsafe tool needs approval, and gets its result from another system."""

    @tool(effect="unsafe", approval="ask")
    def put(key: str) -> str:
        """Do what cannot be undone."""
        note(HERE.home, "begin", "put", key)
        HERE.crash("tool")
        note(HERE.home, "end", "put", key)
        raise ResultLater(f"the store, for {key}")

    others = [one for one in tools if one.spec.name != "put"]
    rules = settings.approval.model_copy(update={"unanswered": "suspend"})
    settings = settings.model_copy(update={"approval": rules})
    return Agent(*given, tools=[put, *others], settings=settings, **options)


def given_up() -> None:
    """Another turn in the session of one that was killed, itself killed up to its first few commits."""
    say({"base": (base := undisturbed(first, folder()))})
    killed(first, anew, base["counts"], then=lambda found: points({"before": FEW, "after": FEW}))


def mutant(name: str) -> None:
    """The same matrix with an engine that has one fault; recovery is the mutant's too."""
    kind, database = MUTANTS[name]
    begin, go_on = (partial(work, kind=kind, database=database) for work in (first, again))
    say({"base": (base := undisturbed(first, folder()))})
    killed(begin, go_on, base["counts"], every=1)


FEW = 4
"""Commits in which a turn comes into a session that another one was left in."""
EDITS: dict[str, dict[str, Any]] = {
    "run again": {"rerun_tools": True},
    "taken over": {},
    "by hand": {"results": {"c1": "put by hand", "c2": "marked by hand"}},
}


def forks(name: str) -> None:
    """A fork of a finished turn, killed at every point, and again at every point of its recovery."""
    with folder() as whole:
        _, made = in_process(partial(first, whole, Crash()))
        begin, go_on = (partial(work, turn=made["turn"], edit=EDITS[name]) for work in (fork, fork_again))
        base = undisturbed(begin, copied(whole))
        say({"base": {**made, "forked": base}})
        killed(begin, go_on, base["counts"], then=anywhere, whole=whole)


def fork(home: Path, crash: Crash, turn: str, edit: dict[str, Any]) -> Result:
    agent = agent_of(home, crash)
    forked = agent.fork(turn, 3, edit)
    return {**told(agent, forked.run()), "counts": dict(crash.counts)}


def fork_again(home: Path, crash: Crash, turn: str, edit: dict[str, Any]) -> Result:
    """Continue the fork of ``turn`` after a crash, or make it if it is missing."""
    agent = agent_of(home, crash)
    old, made = agent.journal.messages(turn), [info for info in agent.journal.recent() if info.parent == turn]
    if made and made[0].ended is not None:
        said = agent.journal.result(made[0].id) or {}
        return {"final": said["final_response"], "messages": agent.journal.messages(made[0].id), "old": old}
    done = agent.resume(made[0].id) if made else agent.fork(turn, 3, edit)
    return {**told(agent, done.run()), "old": old, "counts": dict(crash.counts)}


def many(count: int, shares: list[float]) -> None:
    """Turns that run together, in sessions of their own, killed together after shares of their commits. How
    many moves share a commit differs from run to run: one that ended before it was killed is done again, and
    killed earlier."""

    def start(home: Path, crash: Crash) -> Result:
        store = Store(home, "full", GroupingDatabase)
        sessions = (f"{SESSION}-{number}" for number in range(count))
        agents = [agent_of(home, crash, session=session, store=store) for session in sessions]

        async def all_of_them() -> None:
            await asyncio.gather(*(agent.arun("please", conversation_history=HISTORY) for agent in agents))

        asyncio.run(all_of_them())
        return {"counts": dict(crash.counts)}

    def go_on(home: Path) -> Result:
        store = Store(home, "full", GroupingDatabase)
        found = []
        for number in range(count):
            agent = agent_of(home, Crash(), session=f"{SESSION}-{number}", store=store)
            turns = agent.journal.recent(session=agent.session_id)
            if not turns:
                found.append("not begun")
            elif turns[0].ended is None:
                found.append(agent.resume(turns[0].id).run().final_response)
            else:
                found.append((agent.journal.result(turns[0].id) or {})["final_response"])
        return {"found": found}

    with folder() as home:
        _, whole = in_process(partial(start, home, Crash()))
    for share in shares:
        commit, ended = max(1, int(share * whole["counts"]["before"])), 0
        while not ended:
            with folder() as home:
                ended, begun = in_process(partial(start, home, Crash(("before", commit))))
                if ended:
                    _, after = in_process(partial(go_on, home))
                    say({"commit": commit, "signal": ended, **begun, **after, "world": world(home)})
            commit = max(1, commit * 3 // 4)


def say(found: Result) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    warm_up()
    match sys.argv[1:]:
        case ["matrix", durability, "late" | "prompt" as how, "once" | "twice" as often, every]:
            database = CrashingDatabase if how == "late" else PromptDatabase
            matrix(durability, database, often == "twice", int(every))
        case ["once", kind]:
            once(KINDS[kind])
        case ["suspended"]:
            suspended()
        case ["given up"]:
            given_up()
        case ["mutant", name]:
            mutant(name)
        case ["forks", name]:
            forks(name)
        case ["many", count, *shares]:
            many(int(count), [float(share) for share in shares])
