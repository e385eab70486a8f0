"""Turns that a recorded turn began are drawn with it: children of an agent, and turns of nested tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples import nested
from fsm_agent import Agent
from fsm_agent.diagram.runs import runs_of
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedModel, call, repeat, text, tools
from tests.diagram.test_diagram import visible_text

Cli = Callable[..., tuple[int, str, str]]
TASKS = [{"goal": "sub task one"}, {"goal": "sub task two"}]


def provider(body: dict[str, Any]) -> Any:
    last = body["messages"][-1]
    if last["role"] == "user" and "sub task" in str(last["content"]):
        return text("found it")
    return text("all done") if last["role"] == "tool" else tools(call("delegate_task", {"tasks": TASKS}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FSM_AGENT_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def session(home: Path) -> str:
    """A session whose one turn had two children."""
    options = {"store": store_for(home, "normal"), "clock": FakeClock(), "toolsets": ["delegate"]}
    agent = Agent(ScriptedModel(repeat(provider)), home=home, **options)
    agent.run_conversation("divide the work")
    return agent.session_id


def test_children_of_a_turn_are_told_and_have_their_moves(session: str, cli: Cli) -> None:
    told = cli("diagram", "--overlay", session, "-f", "md")[1]
    for number in ("one", "two"):
        assert f"## ExecuteTools began “sub task {number}” after move 3: 3 moves," in told
    assert told.count("| 3 | `CallLLM.text` | Finalize |") == 2
    picture = visible_text(cli("diagram", "--overlay", session, "-f", "svg")[1]).replace("\n", " ")
    assert "ExecuteTools began “sub task one” after move 3: 3 moves," in picture
    assert "6 moves, " in picture
    value = json.loads(cli("diagram", "--overlay", session, "-f", "json")[1])
    assert value["moves"] == 6
    assert [(child["asked"], child["at"], child["exit"]) for child in value["children"]] == [
        (task["goal"], 3, "text_response") for task in TASKS
    ]
    assert value["children"][0]["path"] == ["Prepare.ready", "BuildMessages.built/3", "CallLLM.text"]


def test_the_export_of_a_session_has_the_same_children(session: str, home: Path, cli: Cli) -> None:
    file = home / "session.jsonl"
    file.write_text(cli("sessions", "export", session)[1])
    (run,) = runs_of(str(file))
    assert [(child.asked, child.at, len(child.steps)) for child in run.children] == [
        (task["goal"], 3, 3) for task in TASKS
    ]
    assert "after move 3: 3 moves" in cli("diagram", "--overlay", str(file), "-f", "md")[1]
    covered = json.loads(cli("diagram", "--coverage", str(file), "-f", "json")[1])
    assert covered["moves"] == 6 + 2 * 3


def test_what_a_nested_table_did_is_drawn_in_its_frame(home: Path, cli: Cli) -> None:
    workflow = nested.workflow(home)
    workflow.start(nested.Visit(["lamp"])).run()
    (outer,) = workflow.journal.recent(5, table="shop")
    source = ("diagram", "examples.nested:TABLE", "--overlay", outer.id)
    picture = cli(*source, "-f", "svg")[1]
    inner = picture[picture.index('<g class="nested"') :]
    assert "×1" in inner
    assert 'class="arrow t0 unused"' in inner or " unused" in inner
    assert "Order began" in visible_text(picture)
    (child,) = json.loads(cli(*source, "-f", "json")[1])["children"]
    assert child["table"] == "order"
    assert child["exit"] == "sent"


def test_turns_that_name_each_other_end(tmp_path: Path) -> None:
    move = {"kind": "move", "source": "a", "event": "b", "dest": "c", "row": "d", "seconds": 0, "seq": 1}
    circle = [("a", "b"), ("b", "c"), ("c", "a")]
    lines: list[dict[str, Any]] = [{"kind": "fsm-agent", "of": "turn", "id": "a"}]
    lines += [{"kind": "turn", "id": name, "parent": parent} for name, parent in circle]
    lines += [move | {"turn": name} for name, _ in circle]
    file = tmp_path / "circle.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    (run,) = runs_of(str(file))
    assert [one.id for one in (run, *run.below())] == ["a", "c", "b"]
