"""What keeps a move cheap: few commits, and nothing that walks the history or the text."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fsm_agent import Agent, tool
from fsm_agent.runtime.callbacks import Callbacks
from fsm_agent.runtime.events import ToolProgress, Transition
from fsm_agent.runtime.stream_accumulator import StreamAccumulator
from fsm_agent.sessions.store import SqliteDatabase, Store
from fsm_agent.support.clock import SystemClock
from fsm_agent.testing import call, text, tools
from tests.helpers.store_homes import process


class OneByOne(SqliteDatabase):
    """Each job has a commit of its own, and when nobody waits for one, none before the next, so that commits
    can be counted."""

    group, late = 1, 60.0


@tool(concurrency="parallel", effect="pure")
async def echo(words: str) -> str:
    """Give a text back."""
    return words


SETTINGS = {"prompt": {"context_files": False}, "store": {"index": False}}


def agent(home: Path, rounds: int) -> Agent:
    script = [*(tools(call("echo", {"words": str(number)})) for number in range(rounds)), text("done")]
    settings = {"max_iterations": rounds + 1, **SETTINGS}
    store = Store(home, opened=OneByOne)
    return process(home, *script, tools=[echo], system_prompt="Be short.", store=store, settings=settings)


def test_a_round_of_pure_tools_is_one_commit(tmp_path: Path) -> None:
    """Before the model is asked again: three moves, the reply, and what the tool said."""
    commits = []
    for rounds in (2, 5):
        one = agent(tmp_path / str(rounds), rounds)
        assert one.chat("go") == "done"
        commits.append(one.store.database.commits)
    assert commits[1] - commits[0] == 3


def test_a_move_of_a_long_turn_adds_as_little_to_the_journal_as_one_of_a_short_turn(tmp_path: Path) -> None:
    """Also the 128 calls that the guardrails remember are written as what changed."""
    one = agent(tmp_path, 150)
    turn = one.start("go")
    turn.run()
    of = "SELECT length(delta) FROM transitions WHERE turn = ? ORDER BY seq"
    sizes = [size for (size,) in one.store.database.select(of, turn.id)]
    assert max(sizes[-30:-1]) - max(sizes[10:40]) < 80
    assert max(sizes[10:]) < 500


@pytest.mark.slow
def test_a_chunk_costs_the_same_in_a_long_stream() -> None:
    """Adding each piece to one long text would copy all of it for each: twenty times the cost at this
    length."""

    def cost(chunks: int) -> float:
        live = StreamAccumulator(SystemClock(), Callbacks())
        live.begin()
        began = time.process_time()
        for _ in range(chunks):
            live.text("word ")
        spent = time.process_time() - began
        live.close()
        assert live.shown == "word " * chunks
        return spent / chunks

    cost(2_000)
    assert min(cost(100_000) for _ in range(2)) < 6 * min(cost(2_000) for _ in range(5))


def test_what_is_costly_to_tell_is_made_only_for_somebody() -> None:
    callbacks = Callbacks({"transition": lambda turn: None})
    assert callbacks.hears(Transition)
    assert not callbacks.hears(ToolProgress)


def test_the_journal_of_a_turn_holds_every_request_and_reply_as_before(tmp_path: Path) -> None:
    one = agent(tmp_path, 1)
    turn = one.start("go")
    turn.run()
    of = "SELECT kind, status, request, reply FROM effects WHERE turn = ? ORDER BY seq, ordinal, place"
    found = one.store.database.select(of, turn.id)
    assert [kind for kind, *_ in found].count("CallModel") == 2
    for kind, status, request, reply in found:
        assert (status, json.loads(request)["is"]) == ("done", kind)
        assert reply is not None


def test_what_turns_have_alike_is_in_the_file_once(tmp_path: Path) -> None:
    """Settings, limits, tools and prompts, and whatever is empty; the rest of a turn of one line is small."""
    store = Store(tmp_path)
    one = process(tmp_path, *[text("done")] * 80, tools=[echo], store=store, settings=SETTINGS)
    pages, parts = [], []
    for turns in (20, 60):
        for _ in range(turns):
            one.chat("hello")
        pages.append(int(store.database.select("PRAGMA page_count")[0][0]))
        parts.append(int(store.database.select("SELECT COUNT(*) FROM contents")[0][0]))
    assert (pages[1] - pages[0]) * 4096 / 60 < 6_000
    assert parts[1] - parts[0] < 5
