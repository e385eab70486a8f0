"""The review of a conversation by a child turn: only when it is asked for, with little, and within the cap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent
from fsm_agent.sessions.store import Store
from fsm_agent.support.threads import LOOP
from fsm_agent.testing import ScriptedModel, call, slow, text, tools
from tests.helpers.store_homes import book, lookup

NOTE = tools(call("memory", {"action": "add", "content": "The user likes rye bread."}))
SKILL = "---\nname: rye\ndescription: How to bake rye.\n---\nSlowly.\n"


def reviewed(script: list[Any], home: Path, **settings: Any) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(script)
    memory = {"review_every": 1, "review": "child"} | settings.pop("memory", {})
    made = Agent(
        model, home=home, tools=[lookup, book], toolsets=["memory", "learn", "files"], workdir=home.parent,
        settings={"memory": memory, **settings},
    )  # fmt: skip
    return made, model


def notes(home: Path) -> str:
    path = home / "MEMORY.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def offered(body: dict[str, Any]) -> list[str]:
    return sorted(one["function"]["name"] for one in body.get("tools", []))


@pytest.mark.behaviour("FIN-10")
def test_what_was_said_is_looked_over_with_the_tools_for_notes_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    one, model = reviewed([text("Rye it is."), NOTE, text("Kept one note."), text("Hello again.")], home)
    result = one.run_conversation("I like rye bread")
    LOOP.run(one.background.settled())
    assert "The user likes rye bread." in notes(home)
    review = model.requests[1]
    assert offered(review) == ["memory", "skill_manage"]
    assert "user: I like rye bread\nassistant: Rye it is." in json.dumps(review).replace("\\n", "\n")
    assert result.attempts == 1, "its requests are the child's"
    again = one.run_conversation("hello")
    assert "Report on the task" not in json.dumps(model.requests[3])
    assert again.completed
    one.close()


def test_it_happens_only_when_it_is_asked_for_and_within_the_cap_of_the_tree(tmp_path: Path) -> None:
    one, model = reviewed([text("Rye it is.")], tmp_path / "home", memory={"review": "event"})
    one.chat("I like rye bread")
    assert not one.background.running
    assert len(model.requests) == 1
    one.close()
    # its requests count in the cap of the tree
    home = tmp_path / "2" / "home"
    one, model = reviewed(
        [text("Rye it is."), NOTE, text("never sent")], home, delegation={"max_attempts_per_tree": 2}
    )
    one.chat("I like rye bread")
    LOOP.run(one.background.settled())
    assert len(model.requests) == 2
    one.close()


def test_it_gives_up_after_its_iterations_and_asks_nobody(tmp_path: Path) -> None:
    home, asked = tmp_path / "home", []
    made = tools(call("skill_manage", {"action": "create", "name": "rye", "content": SKILL}))
    model = ScriptedModel([text("Rye it is."), made, text("summary")])
    one = Agent(
        model, home=home, toolsets=["memory", "learn"], workdir=tmp_path,
        settings={"memory": {"review_every": 1, "review": "child", "review_iterations": 1}},
        callbacks={"approval": lambda question: asked.append(question) or True},
    )  # fmt: skip
    one.chat("I like rye bread")
    LOOP.run(one.background.settled())
    assert (asked, (home / "skills").exists()) == ([], False)
    assert len(model.requests) <= 3
    one.close()


def test_one_that_was_cut_off_is_taken_up_by_the_sessions_next_turn(tmp_path: Path) -> None:
    home = tmp_path / "home"
    one, _ = reviewed([text("Rye it is."), slow("Kept.", 60)], home)
    one.chat("I like rye bread")
    session = one.session_id
    one.close()
    [(review,)] = Store(home).database.select("SELECT child FROM delegations")
    assert review.endswith(".review.0")
    model = ScriptedModel([text("hello"), text("nothing to keep")])
    later = Agent(
        model, home=home, toolsets=["memory"], session_id=session,
        settings={"memory": {"review_every": 0, "review": "child"}},
    )  # fmt: skip
    later.chat("hello")
    LOOP.run(later.background.settled())
    later.close()
    turns = Store(home).database.select("SELECT COUNT(*) FROM turns WHERE session = ?", review)
    assert turns == [(1,)]
