"""Real processes on one session of one home, troubled at random: see ``tests/crash/crowd.py``. Seeded, and
bounded in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.errors import JournalError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.conversation_journal import ConversationLog
from fsm_agent.testing import FakeClock, ScriptedModel, overflow, repeat, text
from tests.crash.crowd import LOGS, ROTATIONS
from tests.crash.scene import logging_with
from tests.helpers.processes import printed
from tests.helpers.sample import sampled
from tests.helpers.store_homes import HISTORY, ROTATE, contents, look

SECONDS = {"none": 5, "kill": 11, "locks": 11}
"""Of each of the 18 runs, most of them where there is trouble."""
FOUND_SOMETHING = [(5, "plain", "locks"), (5, "rotate", "locks"), (3, "rotate", "kill")]
"""Crowds that found bugs: they are played at each commit, and for twice as long."""


def crowd(processes: int, seconds: float, seed: int, mode: str, trouble: str) -> dict[str, Any]:
    words = [str(processes), str(seconds), str(seed), mode, trouble]
    found: dict[str, Any] = json.loads(printed("-m", "tests.crash.crowd", *words, timeout=seconds + 240))
    return found


def told(found: dict[str, Any]) -> str:
    counted = [f"{name}: {value}" for name, value in found.items() if name != "wrong"]
    return "\n\n".join(counted + found["wrong"][:3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "mode", "trouble"),
    sampled(
        product([2, 3, 5], ["plain", "rotate"], ["none", "kill", "locks"]), "crowds", always=FOUND_SOMETHING
    ),
)
def test_every_turn_that_was_called_completed_is_stored_in_order_and_whole(
    processes: int, mode: str, trouble: str
) -> None:
    seconds = SECONDS[trouble] * (2 if (processes, mode, trouble) in FOUND_SOMETHING else 1)
    found = crowd(processes, seconds, 100 * processes, mode, trouble)
    assert not found["wrong"], told(found)
    assert found["turns"] >= 20
    assert found["rotations"] >= ROTATIONS if mode == "rotate" else found["undone"]
    assert {"none": 1, "kill": found["kills"], "locks": found["removed"]}[trouble]


# What the crowd is there for, each in one order of events: an engine with a fault is caught every time


def speaker(home: Path, log: type[ConversationLog], *script: Any) -> Agent:
    given = {"store": Store(home), "toolsets": [], "tools": [look], "clock": FakeClock(), "session_id": "s-1"}
    return logging_with(log)(ScriptedModel(script), home=home, settings=ROTATE, **given)


def newest(home: Path) -> list[str]:
    """What the conversation ends with, as the file has it."""
    return contents(Store(home).newest("s-1").rows)


async def second_process_has_a_copy(home: Path, mode: str, log: type[ConversationLog]) -> bool:
    """It read the session while the turn of the first one ran. Is nothing of that lost?"""
    if mode == "rotate":
        begun = speaker(home, log, text("zero"), text("the summary"))
        await begun.arun("nothing", conversation_history=HISTORY)
        await begun.acompact()
    first, second = speaker(home, log, text("one")), speaker(home, log, text("two"))
    turn = first.start("first")
    await turn.step()
    waiting = second.start("second")
    await turn.arun()
    with contextlib.suppress(JournalError):
        await waiting.arun()
    return newest(home)[-4:] == ["first", "one", "second", "two"]


async def test_a_successor_that_counts_the_same_is_read(tmp_path: Path) -> None:
    """A rotated session looks like its predecessor if only figures are compared: as many rows, the
    same version, the same revision."""

    def figures() -> tuple[str, tuple[int, int, int]]:
        one = Store(tmp_path).newest("s-1")
        return one.id, (one.revision, one.version, one.next_number)

    texts = [text(f"answer {number} {'word ' * 40}") for number in range(3)]
    first = speaker(
        tmp_path, ConversationLog, text("zero"), text("the summary"), *texts, text("another summary")
    )
    await first.arun("nothing", conversation_history=HISTORY)
    await first.acompact()
    before = figures()
    waiting = speaker(tmp_path, ConversationLog, text("two")).start("second")
    for number in range(3):
        await first.arun(f"question {number} {'word ' * 40}")
    await first.acompact()
    after = figures()
    assert (after[0] != before[0], after[1]) == (True, before[1])
    assert contents((await waiting.arun()).messages)[-4][:10] == "question 2"


async def owner_was_declared_dead(home: Path, mode: str, log: type[ConversationLog]) -> bool:
    """Another process went on without its turn, while it waited for its model. Is nothing of that lost?"""
    words = "first" if mode == "plain" else "too much"

    def taken_over(body: dict[str, Any]) -> Any:
        if mode == "rotate" and "tools" in body:
            return text("one") if "the summary" in str(body["messages"]) else overflow()
        for file in (home / "owners").glob("*.lock"):
            file.unlink()
        with ThreadPoolExecutor(1) as beside:
            beside.submit(speaker(home, ConversationLog, text("between")).chat, "meanwhile").result()
        return text("the summary" if mode == "rotate" else "one")

    await speaker(home, ConversationLog, text("zero")).arun("nothing", conversation_history=HISTORY)
    with contextlib.suppress(JournalError):
        await speaker(home, log, repeat(taken_over)).arun(words)
    await speaker(home, ConversationLog, text("two")).arun("second")
    return newest(home)[-4:] == ["meanwhile", "between", "second", "two"]


@pytest.mark.parametrize("mode", ["plain", "rotate"])
@pytest.mark.parametrize(
    ("scene", "mutant"), [(second_process_has_a_copy, "no read"), (owner_was_declared_dead, "no fence")]
)
def test_an_engine_with_one_fault_is_caught(tmp_path: Path, scene: Any, mutant: str, mode: str) -> None:
    assert asyncio.run(scene(tmp_path / "sound", mode, LOGS[""]))
    assert not asyncio.run(scene(tmp_path / "faulty", mode, LOGS[mutant]))
