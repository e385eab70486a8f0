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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from fsm_agent.composition.options import AgentOptions
from fsm_agent.hooks import ShownCall, ShownRequest
from fsm_agent.sessions.store import Store
from fsm_agent.settings.model import Settings
from fsm_agent.support.workers import WORKERS
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
    """Run the turn once in this process, and wait until nothing of it is left that a fork could trip over."""
    with folder() as home:
        agent = agent_of(home, Crash())
        asyncio.run(agent.arun("please", conversation_history=HISTORY))
        agent._store.close()
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


def first(home: Path, crash: Crash, durability: str, **options: Any) -> Result:
    """The turn from its beginning."""
    agent = agent_of(home, crash, durability, **options)
    result = agent.run_conversation("please", conversation_history=HISTORY)
    return {**told(agent, result), "counts": dict(crash.counts)}


def again(home: Path, crash: Crash, durability: str, **options: Any) -> Result:
    """Go on after a crash: resume what is unfinished; begin anew when nothing had begun; look up what had
    ended."""
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
        "paid": agent.journal.snapshot(turn_id)["attempts"],
        "ended": True,
    }


def anew(home: Path, crash: Crash, durability: str, **options: Any) -> Result:
    """Say something else after a crash, instead of going on with what it left."""
    heard: list[str] = []
    agent = agent_of(
        home, crash, durability, heard=heard, port=ScriptedModel(repeat(text("all done"))), **options
    )
    result = agent.run_conversation("and now?")
    return {
        **told(agent, result),
        "heard": heard,
        "counts": dict(crash.counts),
        "left": len(agent.journal.recent(unfinished=True)),
    }


def told(agent: Any, result: Any) -> Result:
    """What the turn says came of it, and what somebody else reads in the file."""
    other = Store(agent.home)
    fresh = [row.to_dict() for row in other.session(result.session_id).rows]
    with other.database.reading() as c:
        tokens = c.execute(
            "SELECT TOTAL(input + output) FROM usage WHERE turn = ?", (result.turn_id,)
        ).fetchone()[0]
    other.close()
    states = [visit.state for visit in result.states]
    return {
        "final": result.final_response,
        "exit": result.turn_exit_reason.value,
        "messages": result.messages,
        "stored": fresh,
        "states": states,
        "problems": result.cleanup_errors,
        "turn": result.turn_id,
        "paid": agent.journal.snapshot(result.turn_id)["attempts"],
        "tokens": [result.usage_turn.total, int(tokens)],
    }


def points(counts: dict[str, int]) -> list[Point]:
    """Every point of a run in which these things happened so often."""
    return [
        (what, number)
        for what in ("before", "after", "model", "tool")
        for number in range(1, counts.get(what, 0) + 1)
    ]


def case(durability: str, point: Point, home: Path, **options: Any) -> Result:
    """The turn in ``home``, killed at ``point``, and its recovery in a copy: ``home`` is left as the kill
    left it."""
    signal, _ = in_process(lambda: first(home, Crash(point), durability, **options))
    return {"point": point, **recovery(durability, home, None, [signal], **options)}


def recovery(
    durability: str,
    killed: Path,
    then: Point | None,
    signals: list[int],
    go_on: Callable[..., Result] = again,
    **options: Any,
) -> Result:
    """Go on in a copy of what a kill left; perhaps killed again on the way at ``then``, and gone on with once
    more."""
    with copied(killed) as home:
        if then is not None:
            signals = [*signals, in_process(lambda: go_on(home, Crash(then), durability, **options))[0]]
        signal, found = in_process(lambda: go_on(home, Crash(), durability, **options))
        return {"then": then, "signals": [*signals, signal], **found, "world": world(home)}


def undisturbed(durability: str, **options: Any) -> Result:
    with folder() as home:
        signal, found = in_process(lambda: first(home, Crash(), durability, **options))
        return {"signals": [signal], **found, "world": world(home)}


def matrix(durability: str, recoveries: bool, every: int, database: type[CrashingDatabase]) -> None:
    """One in ``every`` points of the turn; or a sample of them, and every point of the recovery from each."""
    base = undisturbed(durability, database=database)
    say({"base": base})
    wanted = points(base["counts"])
    for point in sampled(wanted, "killed") if recoveries else wanted[::every]:
        with tempfile.TemporaryDirectory() as place:
            found = case(durability, point, home := Path(place), database=database)
            say(found)
            for then in points(found.get("counts", {})) if recoveries else ():
                ended = found["signals"][:1]
                say({"point": point, **recovery(durability, home, then, ended, database=database)})


def asking(*given: Any, tools: Any, callbacks: Any, **options: Any) -> Agent:
    """An agent whose unsafe tool waits for a person."""

    def person(request: Any) -> str:
        note(HERE.home, "asked", request.name)
        return "once"

    with_question = [
        replace(one, spec=replace(one.spec, approval="ask")) if one.spec.name == "put" else one
        for one in tools
    ]
    return Agent(*given, tools=with_question, callbacks={**callbacks, "approval": person}, **options)


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
    limits = {
        scope: {"usd": 10, "tokens": 1_000_000, "seconds": 600}
        for scope in ("turn", "tree", "session", "day")
    }
    prices = {"scripted:scripted": {"input": 1, "output": 2}}
    asked = Settings.of({"limits": limits, "prices": prices})
    kept = {"limits": asked.limits, "prices": asked.prices}
    return Agent(*given, settings=settings.model_copy(update=kept), **options)


def typed(*given: Any, **options: Any) -> Agent:
    """An agent whose answers are of a type: any text is, when it is checked."""
    return Agent.of(AgentOptions(model=given[0], output_type=int | str, **options))


KINDS = {"asking": asking, "hooked": hooked, "typed": typed, "limited": limited}


def once(kind: Callable[..., Agent]) -> None:
    """The turn of another kind of agent, killed at every point."""
    with folder() as home:
        _, base = in_process(lambda: first(home, Crash(), "full", kind=kind))
    say({"base": base})
    for point in sampled(points(base["counts"]), "killed"):
        with folder() as home:
            say(case("full", point, home, kind=kind))


def suspended(recoveries: bool, every: int) -> None:
    """The turn whose unsafe tool waits for a yes, and then for its result: killed at every point of what asks,
    answers and goes on (one in ``every``, or a sample), and again at every point of the recovery."""
    with folder() as home:
        _, base = in_process(lambda: to_the_end(home, Crash(), "full"))
    say({"base": base})
    wanted = points(base["counts"])
    for point in sampled(wanted, "killed") if recoveries else wanted[::every]:
        with folder() as killed:
            ended = [
                in_process(lambda killed=killed, point=point: to_the_end(killed, Crash(point), "full"))[0]
            ]  # type: ignore[misc]
            say(found := {"point": point, **recovery("full", killed, None, ended, go_on=to_the_end)})
            for then in points(found.get("counts", {})) if recoveries else ():
                say({"point": point, **recovery("full", killed, then, ended, go_on=to_the_end)})


def to_the_end(home: Path, crash: Crash, durability: str) -> Result:
    """Whatever is next: begin the turn, answer what it waits for, go on with it, look up what came of it."""
    heard: list[str] = []
    while True:
        agent = agent_of(home, crash, durability, heard=heard, kind=waiting)
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
    """An agent whose unsafe tool needs a yes, and hands its work to somebody else."""

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
    """Every point of the turn; then another turn in its session, itself killed at every point up to its first
    few commits."""
    base = undisturbed("full")
    say({"base": base})
    for point in sampled(points(base["counts"]), "killed"):
        with folder() as home:
            signal, _ = in_process(lambda home=home, point=point: first(home, Crash(point), "full"))  # type: ignore[misc]
            for then in (None, *points({"before": FEW, "after": FEW})):
                say({"point": point, **recovery("full", home, then, [signal], go_on=anew)})


def mutant(name: str) -> None:
    """The same matrix with an engine that has one fault; recovery is the mutant's too."""
    kind, database = MUTANTS[name]
    options = {"kind": kind, "database": database}
    base = undisturbed("full")
    say({"base": base})
    for point in points(base["counts"]):
        with folder() as home:
            say(case("full", point, home, **options))


FEW = 4
"""Commits in which a turn comes into a session that another one was left in."""
EDITS: dict[str, dict[str, Any]] = {
    "run again": {"rerun_tools": True},
    "taken over": {},
    "by hand": {"results": {"c1": "put by hand", "c2": "marked by hand"}},
}


def forks(name: str) -> None:
    """A fork of a finished turn, killed at every point, and again at every point of its recovery."""
    edit = EDITS[name]
    with folder() as whole:
        _, made = in_process(lambda: first(whole, Crash(), "full"))
        turn = made["turn"]
        with copied(whole) as home:
            _, base = in_process(lambda: fork(home, turn, edit, Crash()))
            say({"base": {**made, "forked": base}})
        for point in sampled(points(base["counts"]), "killed"):
            with copied(whole) as killed:
                ended, _ = in_process(
                    lambda killed=killed, point=point: fork(killed, turn, edit, Crash(point))
                )  # type: ignore[misc]
                found = fork_recovery(killed, turn, edit, None, ended)
                say({"point": point, **found})
                for then in points(found.get("counts", {})):
                    say({"point": point, **fork_recovery(killed, turn, edit, then, ended)})


def fork(home: Path, turn: str, edit: dict[str, Any], crash: Crash) -> Result:
    agent = agent_of(home, crash)
    forked = agent.fork(turn, 3, edit)
    return {**told(agent, forked.run()), "counts": dict(crash.counts)}


def fork_again(home: Path, turn: str, edit: dict[str, Any], crash: Crash) -> Result:
    """Go on with the fork of ``turn`` after a crash, or make it when there is none."""
    agent = agent_of(home, crash)
    old, made = agent.journal.messages(turn), [info for info in agent.journal.recent() if info.parent == turn]
    if made and made[0].ended is not None:
        said = agent.journal.result(made[0].id) or {}
        return {"final": said["final_response"], "messages": agent.journal.messages(made[0].id), "old": old}
    done = agent.resume(made[0].id) if made else agent.fork(turn, 3, edit)
    return {**told(agent, done.run()), "old": old, "counts": dict(crash.counts)}


def fork_recovery(killed: Path, turn: str, edit: dict[str, Any], then: Point | None, ended: int) -> Result:
    with copied(killed) as home:
        signals = [ended]
        if then is not None:
            signals.append(in_process(lambda: fork_again(home, turn, edit, Crash(then)))[0])
        signal, found = in_process(lambda: fork_again(home, turn, edit, Crash()))
        return {"then": then, "signals": [*signals, signal], **found, "world": world(home)}


def many(count: int, shares: list[float]) -> None:
    """Turns that run together, in sessions of their own, killed together after shares of their commits. How
    many moves share a commit differs from run to run: one that ended before it was killed is done again, and
    killed earlier."""

    def start(home: Path, crash: Crash) -> Result:
        store = Store(home, "full", GroupingDatabase)
        agents = [
            agent_of(home, crash, session=f"{SESSION}-{number}", store=store) for number in range(count)
        ]

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
        _, whole = in_process(lambda: start(home, Crash()))
    for share in shares:
        commit, ended = max(1, int(share * whole["counts"]["before"])), 0
        while not ended:
            with folder() as home:
                ended, begun = in_process(
                    lambda home=home, commit=commit: start(home, Crash(("before", commit)))
                )  # type: ignore[misc]
                if ended:
                    _, after = in_process(lambda home=home: go_on(home))  # type: ignore[misc]
                    say({"commit": commit, "signal": ended, **begun, **after, "world": world(home)})
            commit = max(1, commit * 3 // 4)


def say(found: Result) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    warm_up()
    match sys.argv[1:]:
        case ["matrix", durability, "late" | "prompt" as how, "once" | "twice" as often, every]:
            database = CrashingDatabase if how == "late" else PromptDatabase
            matrix(durability, often == "twice", int(every), database)
        case ["once", kind]:
            once(KINDS[kind])
        case ["suspended", "once" | "twice" as often, every]:
            suspended(often == "twice", int(every))
        case ["given up"]:
            given_up()
        case ["mutant", name]:
            mutant(name)
        case ["forks", name]:
            forks(name)
        case ["many", count, *shares]:
            many(int(count), [float(share) for share in shares])
