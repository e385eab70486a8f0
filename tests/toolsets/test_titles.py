"""A title for a session by a model for it: after the first turn, and never instead of one that a person gave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.stored_sessions import rename
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import FakeClock, ScriptedServer, slow, status, text

QUESTION = "how do I bake a loaf of rye bread that does not fall apart when it is cut"


@contextmanager
def asked(
    home: Path, small: list[Any], main: list[Any], **options: Any
) -> Iterator[tuple[Agent, ScriptedServer]]:
    with ScriptedServer(small) as smaller, ScriptedServer(main) as larger:
        entry = {"model": "openai:gpt-mini", "base_url": smaller.url, "api_key": "k"}
        agent = Agent(
            "openai:gpt-x", base_url=larger.url, api_key="k", home=home, toolsets=[],
            auxiliary={"title": entry}, clock=FakeClock(), **options,
        )  # fmt: skip
        yield agent, smaller
        agent.close()


def title(home: Path, session: str) -> str:
    with closing(Store(home, "full")) as store:
        [[found]] = store.database.select("SELECT title FROM sessions WHERE id = ?", session)
    return str(found)


@pytest.mark.behaviour("SESS-15")
def test_a_session_is_named_after_its_first_turn_and_only_then(tmp_path: Path) -> None:
    small, main = [text('"Rye bread that holds."\n')], [text("Slowly."), text("Yes.")]
    with asked(tmp_path, small, main) as (agent, server):
        result = agent.run_conversation(QUESTION)
        LOOP.run(agent.background.settled())
        assert title(tmp_path, result.session_id) == "Rye bread that holds"
        [body] = server.bodies
        assert body["model"] == "gpt-mini"
        assert "tools" not in body
        assert QUESTION in str(body["messages"][-1])
        assert "Slowly." in str(body["messages"][-1])
        assert agent.run_conversation("sure?").completed
        LOOP.run(agent.background.settled())
        assert server.completions == 1
        assert "Report on the task" not in str(result.messages)


def test_a_title_that_a_person_gave_stays(tmp_path: Path) -> None:
    with asked(tmp_path, [slow("Rye", 0.4)], [text("Slowly.")]) as (agent, server):
        result = agent.run_conversation(QUESTION)
        with closing(Store(tmp_path, "full")) as store:
            rename(store, result.session_id, "bread")
        LOOP.run(agent.background.settled())
        assert server.completions == 1
    assert title(tmp_path, result.session_id) == "bread"


@pytest.mark.parametrize("reply", [text(" \n"), status(404), text("<think>hm</think>")])
def test_without_a_title_the_first_words_stay(tmp_path: Path, reply: Any) -> None:
    with asked(tmp_path, [reply] * 3, [text("Slowly."), *[status(404)] * 5]) as (agent, _):
        result = agent.run_conversation(QUESTION)
        LOOP.run(agent.background.settled())
    assert title(tmp_path, result.session_id).startswith("how do I bake")


def test_the_next_turn_does_not_wait_and_loses_nothing(tmp_path: Path) -> None:
    with asked(tmp_path, [slow("Rye", 0.3)], [text("Slowly."), slow("Yes.", 0.6)]) as (agent, _):
        first = agent.run_conversation(QUESTION)
        second = agent.run_conversation("sure?")
        assert second.completed
        assert second.stored
        assert not second.cleanup_errors
    assert title(tmp_path, first.session_id) == "Rye"
    with asked(tmp_path, [], [text("Still.")], session_id=first.session_id) as (agent, _):
        assert [row["content"] for row in agent.run_conversation("and now?").messages][1::2] == [
            "Slowly.", "Yes.", "Still.",
        ]  # fmt: skip
    # an agent that is closed at once waits for it
    with asked(tmp_path / "2", [slow("Rye", 0.3)], [text("Slowly.")]) as (agent, _):
        result = agent.run_conversation(QUESTION)
    assert title(tmp_path / "2", result.session_id) == "Rye"
