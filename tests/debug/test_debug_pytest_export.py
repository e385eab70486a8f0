"""Tests made from recorded turns: they are green, and they are red when the turn would go another way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, tool
from fsm_agent.backtest.replay import make_test
from fsm_agent.conversation.effects import AskApproval
from fsm_agent.debug import DebugSession
from fsm_agent.errors import ConfigError
from fsm_agent.sessions.store import Store
from fsm_agent.testing import (
    FakeClock,
    ScriptedModel,
    bad_json,
    blank,
    call,
    cut,
    drop,
    length,
    overflow,
    repeat,
    status,
    text,
    tools,
)
from tests.helpers.harness import MakeAgent
from tests.helpers.waiting import PATIENCE


@tool(effect="pure")
def look(at: str = "sky") -> str:
    """Look."""
    return f"the {at} is blue"


@tool(effect="unsafe")
def breaks(why: str = "") -> str:
    """Always fails."""
    raise RuntimeError("it is broken")


@tool(approval="ask")
def paint(thing: str) -> str:
    """Paint."""
    return f"painted {thing}"


def turn(home: Path, script: Any, **options: Any) -> tuple[Store, str]:
    options = {"toolsets": [], "clock": FakeClock(), "tools": [look, breaks, paint], **options}
    store = Store(home, "normal")
    agent = Agent(ScriptedModel(script), home=home, store=store, **options)

    agent.run_conversation("what color is the sky?")
    return store, agent.journal.recent(1)[0].id


def allow(request: AskApproval) -> str:
    return "once" if request.arguments["thing"] == "wall" else "deny"


def interrupting(agents: list[Agent]) -> Any:
    def interrupt(body: Any) -> Any:
        agents[0].interrupt("stop")
        return tools(call("look"))

    return interrupt


SCRIPTS: dict[str, Any] = {
    "an answer": [text("blue")],
    "tools": [tools(call("look"), call("look", {"at": "sea"})), text("blue")],
    "a tool that fails": [tools(call("breaks")), text("it broke")],
    "an unknown tool": [tools(call("nothing")), text("sorry")],
    "bad arguments": [bad_json("look"), text("blue")],
    "retries": [status(503), drop(), status(500), text("blue")],
    "a wrong key": [status(401), text("never")],
    "overflow": [tools(call("look")), overflow(), overflow(), overflow(), text("blue")],
    "blank answers": [blank(), blank(), blank(), blank(), blank(), blank()],
    "a cut answer": [length("The sky is "), cut("very "), text("blue.")],
}


def run(source: str) -> None:
    """As pytest would."""
    names: dict[str, Any] = {}
    exec(compile(source, "test_made.py", "exec"), names)
    names["test_turn"]()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_made_test_is_green(name: str, tmp_path: Path) -> None:
    store, turn_id = turn(tmp_path / "home", SCRIPTS[name])
    run(make_test(store, turn_id))


def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    store, turn_id = turn(tmp_path / "home", [text("the key is sk-live-0123456789abcdef")])
    source = make_test(store, turn_id)
    assert "sk-live-0123456789abcdef" not in source
    run(source)


def test_it_is_red_when_the_turn_goes_another_way(tmp_path: Path) -> None:
    store, turn_id = turn(tmp_path / "home", [tools(call("look")), text("blue")])
    source = make_test(store, turn_id)
    for old, new in (
        ("CallLLM.text", "CallLLM.blank"),
        ("'text': 'blue'", "'text': 'green'"),
        ("'call_1_0': [", "'call_9_9': ["),
    ):
        with pytest.raises(AssertionError):
            run(source.replace(old, new))


def test_approvals_fallbacks_and_settings(tmp_path: Path) -> None:
    script = [
        tools(*(call("paint", {"thing": thing}) for thing in ("wall", "door"))), status(404), text("done"),
    ]  # fmt: skip
    fallback = {"model": ScriptedModel([text("from the fallback")])}
    options = {"fallbacks": [fallback], "settings": {"max_iterations": 5}}
    store, turn_id = turn(tmp_path / "home", script, callbacks={"approval": allow}, **options)
    source = make_test(store, turn_id)
    assert "'max_iterations': 5" in source
    run(source)


def test_a_turn_with_history_and_one_that_was_interrupted(tmp_path: Path) -> None:
    store, agents = Store(tmp_path / "home", "normal"), list[Agent]()
    script = [text("hello"), interrupting(agents), text("never")]
    options: dict[str, Any] = {"toolsets": [], "home": tmp_path / "home", "store": store}
    agents.append(Agent(ScriptedModel(script), tools=[look], clock=FakeClock(), **options))
    agents[0].run_conversation("hello")
    agents[0].run_conversation("what color is the sky?")
    info = agents[0].journal.recent(1)[0]
    assert info.outcome == "interrupted"
    source = make_test(store, info.id)
    assert "'content': 'hello'" in source
    run(source)


def test_a_fork_with_an_answer_by_hand(agent: MakeAgent, tmp_path: Path) -> None:
    store, turn_id = turn(tmp_path / "home", [tools(call("look")), text("blue")])
    says = repeat(lambda body: text(f"it says {body['messages'][-1]['content']}"))
    workshop = DebugSession(store, lambda hint: agent(says, tools=[look], store=store))
    fork = workshop.fork(turn_id, 3, {"results": {"call_1_0": "the sky is green"}})
    fork.order("continue")
    asyncio.run(fork.settled(PATIENCE))
    run(workshop.test(fork.id))
    workshop.close()


def test_what_cannot_be_a_test_is_refused(tmp_path: Path) -> None:
    store, turn_id = turn(tmp_path / "home", [text("blue")])
    unfinished = Agent(ScriptedModel([]), toolsets=[], home=tmp_path / "home", store=store).start("wait")
    with pytest.raises(ConfigError, match="no such turn"):
        make_test(store, unfinished.id)
    other = "UPDATE transitions SET row = 'CallLLM.blank' WHERE turn = ? AND seq = 3"
    store.database.write(lambda c: c.execute(other, (turn_id,)) and None)
    with pytest.raises(ConfigError, match=r"does not come out the same .*: move 3 is another"):
        make_test(store, turn_id)
