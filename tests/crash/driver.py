"""Runs one case after the other, each in processes of its own, and prints what came of it as JSON lines.

Started as a program of its own, before any thread: every process is a fork of this one, so that hundreds of them cost no import.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsm_agent.store import Store
from tests.crash.mutants import MUTANTS
from tests.crash.scene import HISTORY, SESSION, Crash, GroupingDatabase, agent_of, world

Result = dict[str, Any]


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
    """Go on after a crash: resume what is unfinished; begin anew when nothing had begun; look up what had ended."""
    agent = agent_of(home, crash, durability, **options)
    heard: list[str] = []
    agent._world.callbacks.emit = lambda channel, *values: heard.append(str(values[0])) if channel == "status" else None  # type: ignore[method-assign]
    turns = agent.journal.recent(session=SESSION)
    if not turns:
        result = agent.run_conversation("please", conversation_history=HISTORY)
    elif turns[0].ended is not None:
        said = agent.journal.result(turns[0].id) or {}
        rows = [row.to_dict() for row in agent._store.session(SESSION).rows]
        return {
            "final": said["final_response"],
            "exit": said["turn_exit_reason"],
            "messages": rows,
            "heard": heard,
            "ended": True,
        }
    else:
        result = agent.resume(SESSION).run()
    return {**told(agent, result), "heard": heard, "counts": dict(crash.counts)}


def told(agent: Any, result: Any) -> Result:
    fresh = [row.to_dict() for row in agent._store.session(result.session_id).rows]
    states = [visit.state for visit in result.states]
    return {
        "final": result.final_response,
        "exit": result.turn_exit_reason.value,
        "messages": result.messages,
        "stored": fresh,
        "states": states,
        "problems": result.cleanup_errors,
        "turn": result.turn_id,
    }


def case(
    durability: str, point: tuple[str, int] | None, then: tuple[str, int] | None, options: dict[str, Any] | None = None
) -> Result:
    """Crash at ``point``, perhaps again at ``then`` while going on, and go on to the end."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        ends = [in_process(lambda: first(home, Crash(point), durability, **(options or {})))]
        for crash in [Crash(then)] * (then is not None) + [Crash()] * (point is not None):
            ends.append(in_process(lambda crash=crash: again(home, crash, durability, **(options or {}))))  # type: ignore[misc]
        return {"point": point, "then": then, "signals": [end[0] for end in ends], **ends[-1][1], "world": world(home)}


def points(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Every point of a run in which these things happened so often."""
    return [(what, number) for what in ("before", "after", "model", "tool") for number in range(1, counts.get(what, 0) + 1)]


def matrix(durability: str, second: int, every: int = 1) -> None:
    """Every point of the turn (or one in ``every``); for each ``second`` one of them, every point of the recovery too."""
    base = case(durability, None, None)
    say({"base": base})
    for index, point in enumerate(points(base["counts"])[::every]):
        found = case(durability, point, None)
        say(found)
        if second and index % second == 0:
            for then in points(found.get("counts", {})):
                say(case(durability, point, then))


def mutant(name: str) -> None:
    """The same matrix with an engine that has one fault; recovery is the mutant's too."""
    kind, database = MUTANTS[name]
    options = {"kind": kind, "database": database}
    base = case("full", None, None)
    say({"base": base})
    for point in points(base["counts"]):
        say(case("full", point, None, options))


def forks() -> None:
    """A fork of a finished turn, killed at every point and resumed."""

    def prepare(home: Path) -> Result:
        return first(home, Crash(), "full")

    def go(home: Path, turn: str, crash: Crash) -> Result:
        agent = agent_of(home, crash)
        forked = agent.fork(turn, 3, {"rerun_tools": True})
        return {**told(agent, forked.run()), "counts": dict(crash.counts)}

    def go_on(home: Path, turn: str) -> Result:
        agent = agent_of(home, Crash())
        old, made = agent.journal.messages(turn), [info for info in agent.journal.recent() if info.parent == turn]
        if made and made[0].ended is not None:
            said = agent.journal.result(made[0].id) or {}
            return {"final": said["final_response"], "messages": agent.journal.messages(made[0].id), "old": old}
        done = agent.resume(made[0].id) if made else agent.fork(turn, 3, {"rerun_tools": True})
        return {**told(agent, done.run()), "old": old}

    with tempfile.TemporaryDirectory() as folder:
        _, made = in_process(lambda: prepare(Path(folder)))
        _, base = in_process(lambda: go(Path(folder), made["turn"], Crash()))
        counts = base["counts"]
        say({"base": {**made, "forked": base}})
    for point in points(counts):
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            _, made = in_process(lambda home=home: prepare(home))  # type: ignore[misc]
            ended = in_process(lambda home=home, made=made, point=point: go(home, made["turn"], Crash(point)))  # type: ignore[misc]
            _, found = in_process(lambda home=home, made=made: go_on(home, made["turn"]))  # type: ignore[misc]
            say({"point": point, "signals": [ended[0]], **found, "world": world(home)})


def many(count: int, shares: list[float]) -> None:
    """Turns that run together, in sessions of their own, killed together after shares of their commits."""

    def start(home: Path, crash: Crash) -> Result:
        store = Store(home, "full", GroupingDatabase)
        agents = [agent_of(home, crash, session=f"{SESSION}-{number}", store=store) for number in range(count)]

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

    with tempfile.TemporaryDirectory() as folder:
        _, whole = in_process(lambda: start(Path(folder), Crash()))
    for commit in [max(1, int(share * whole["counts"]["before"])) for share in shares]:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            ended, begun = in_process(lambda home=home, commit=commit: start(home, Crash(("before", commit))))  # type: ignore[misc]
            _, after = in_process(lambda home=home: go_on(home))  # type: ignore[misc]
            say({"commit": commit, "signal": ended, **begun, **after, "world": world(home)})


def say(found: Result) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["matrix", durability, second, every]:
            matrix(durability, int(second), int(every))
        case ["mutant", name]:
            mutant(name)
        case ["forks"]:
            forks()
        case ["many", count, *shares]:
            many(int(count), [float(share) for share in shares])
