"""A turn whose process ended before its first move goes on with the whole conversation, not only with its own
message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.testing import ScriptedModel, text


def agent(home: Path, *script: Any) -> Agent:
    return Agent(ScriptedModel(script), home=home, toolsets=[], session_id="s-1")


@pytest.mark.parametrize("requests", [1, 2, 3, 4])
def test_what_was_said_before_is_still_there(tmp_path: Path, requests: int) -> None:
    one = agent(tmp_path, text("one"))
    one.run_conversation("first")
    turn = one.start("second")

    async def cut_off() -> None:
        for _ in range(requests):
            await turn.step_into()
        one._store.let_go(turn.id)

    asyncio.run(cut_off())
    one._session().release(one._session().claim)
    other = agent(tmp_path, text("two"), text("three"))
    said = [row["content"] for row in other.resume(turn.id).run().messages]
    assert said == ["first", "one", "second", "two"]
    assert [row["content"] for row in other.run_conversation("third").messages] == [*said, "third", "three"]


def test_a_fork_from_the_very_beginning_of_a_turn_has_what_was_said_before(tmp_path: Path) -> None:
    one = agent(tmp_path, text("one"), text("two"), text("other"))
    one.run_conversation("first")
    second = one.run_conversation("second").turn_id
    fork = one.fork(second, 0).run()
    assert [row["content"] for row in fork.messages] == ["first", "one", "second", "other"]
