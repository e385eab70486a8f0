"""The arguments of an agent: bad input gets one clear line (what, given, allowed) and loses nothing. The
permissions of an agent, and what a provider learns of the machine, by default."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from functools import partial
from inspect import getsource, signature
from pathlib import Path
from typing import Any

import pytest

from fsm_agent import Agent, BaseTurn, TurnResult, Workflow, tool
from fsm_agent.errors import ConfigError, TurnFailed
from fsm_agent.fsm.table import Table, end, lines_of, on
from fsm_agent.options import DEFAULT_TOOLSETS, AgentArguments
from fsm_agent.testing import FakeClock, ScriptedModel, ScriptedServer, call, repeat, status, text, tools
from fsm_agent.tools import as_tool
from tests.helpers.harness import MakeAgent, play


async def test_the_text_of_a_turn_is_read_as_it_arrives(agent: MakeAgent) -> None:
    answers = partial(agent, toolsets=[])
    look = tool(effect="pure", name="look")(lambda: "seen")
    with_tool = answers(tools(call("look"), text="I look. "), text("It is red."), tools=[look])
    pieces = [piece async for piece in with_tool.stream_text("what is it?")]
    assert "".join(pieces) == "I look. \n\nIt is red."
    assert len(pieces) > 1
    limited = answers(settings={"max_iterations": 0, "budget": {"grace_call": False}})
    (explained,) = [piece async for piece in limited.stream_text("hi")]
    assert "0 iterations" in explained
    with pytest.raises(TurnFailed):
        _ = [piece async for piece in answers(status(401, "no")).stream_text("hi")]
    other = answers(text("I am the other."), name="other")
    first = answers(tools(call("transfer_to_other", {"note": "go"})), name="first", handoffs=[other])
    assert "".join([piece async for piece in first.stream_text("hi")]) == "I am the other."


@pytest.mark.parametrize(
    ("message", "arguments", "words"),
    [
        ("", {}, "the message is empty"), (3, {}, "message"), ([{"type": "text", "text": " "}, 3], {}, "part"),
        ("hi", {"system_message": 3}, "system_message has the wrong type; given: 3; allowed: a text, or None"),
        ([{"type": "text", "text": "hi"}], {"task_id": 3}, "task_id has the wrong type"),
        ([{"type": "text", "text": "hi"}], {"limits": 3}, "limits has the wrong type"),
        ("hi", {"output_type": 3}, "output_type"), ("hi", {"conversation_history": 3}, "history"),
    ],
)  # fmt: skip
def test_arguments_of_streamed_text_are_refused_at_the_call(
    agent: MakeAgent, message: Any, arguments: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        agent().stream_text(message, **arguments)


async def test_leaving_the_text_early_stops_the_turn(agent: MakeAgent) -> None:
    one = agent(text("one two three four"), toolsets=[])
    reading = one.stream_text("count")
    assert await anext(reading)
    await reading.aclose()
    (turn,) = one.journal.recent()
    assert turn.ended is None


@tool(effect="pure")
def broken(key: str) -> str:
    """Look something up."""
    return {"api_key": "sk-" + "a" * 40}[key]


def test_a_bug_in_a_tool_leaves_its_traceback_and_the_model_reads_a_line(
    agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    one = agent(tools(call("broken", {"key": "gone"})), text("sorry"), tools=[broken])
    result = one.run_conversation("hi")
    (bug,) = result.bugs
    assert bug.startswith("Traceback (most recent call last):")
    assert 'in broken\n    return {"api_key"' in bug
    assert bug.endswith("KeyError: 'gone'")
    assert bug in caplog.text
    (read,) = [row["content"] for row in result.messages if row["role"] == "tool"]
    assert (result.completed, read.count("\n")) == (True, 0)
    assert agent(text("ok")).run_conversation("hi").bugs == []


@pytest.mark.parametrize("way", ["chat", "arun", "turn", "stream"])
def test_with_debug_a_bug_in_a_tool_is_raised(agent: MakeAgent, way: str) -> None:
    one = agent(tools(call("broken", {"key": "gone"})), text("sorry"), tools=[broken], debug=True)

    async def streamed() -> list[str]:
        return [piece async for piece in one.stream_text("hi")]

    ways: dict[str, Any] = {
        "chat": lambda: one.chat("hi"), "arun": lambda: asyncio.run(one.arun("hi")),
        "turn": lambda: one.start("hi").run(), "stream": lambda: asyncio.run(streamed()),
    }  # fmt: skip
    with pytest.raises(KeyError, match="gone") as raised:
        ways[way]()
    assert raised.traceback[-1].name == "broken"
    (info,) = one.journal.recent()
    assert info.exit == "interrupted_in_tools", "the turn is stored, and the model was not asked again"
    assert one.chat("again") == "sorry"


def test_a_bug_in_a_state_is_in_the_turn(tmp_path: Path) -> None:
    def look(turn: BaseTurn) -> Any:
        yield from ()
        return {"here": "done"}["gone"]

    lines = lines_of({"Look": [on("done", end("fine", "End"), why="seen")]})
    table = Table("bugs", ("Look", "End"), "End", (), lines, macros=(("crashed", {"Look": "broken"}),))

    def finish(turn: BaseTurn) -> Any:
        yield from ()
        return None

    async def perform(request: Any) -> Any:
        raise AssertionError(request)

    turn = Workflow(table, {"Look": look, "End": finish}, BaseTurn, perform, home=tmp_path).start(BaseTurn())
    turn.run()
    (bug,) = turn.bugs
    assert (type(bug), bug.__traceback__ is not None) == (KeyError, True)


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ConfigError, match="home directory cannot be written"):
        Agent("offline:demo", home=tmp_path / "file" / "home")


@pytest.mark.parametrize(
    "message", ["", "   \n", 3, None, [], [{"text": "no type"}], b"bytes", "x" * 8_000_001]
)
def test_a_message_that_cannot_be_sent_starts_no_turn(agent: MakeAgent, message: Any) -> None:
    one = agent(text("ok"))
    with pytest.raises(ConfigError, match="the message"):
        one.start(message)
    assert one.chat("go") == "ok"


@pytest.mark.behaviour("INV-07b")
@pytest.mark.parametrize(
    "history", [[{"role": "robot", "content": "x"}], ["x"], [{"role": "user", "content": 3}]]
)
def test_an_invalid_history_is_refused(agent: MakeAgent, history: Any) -> None:
    with pytest.raises(ConfigError):
        agent(text("ok")).run_conversation("go", conversation_history=history)


BIG = "0123456789" * 100_000
PARTS = [
    {"type": "text", "text": "what is this"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
]


@pytest.mark.behaviour("PREP-04", "PREP-05")
@pytest.mark.parametrize(
    ("message", "arrives"),
    [
        ("a\ud800b\x00c", "a\ufffdbc"), ("hi <memory-context>\nsecret\n</memory-context> there", "hi there"),
        (BIG, BIG), (PARTS, PARTS),
    ],
    ids=["unsafe characters", "a leaked memory block", "a megabyte", "parts"],
)  # fmt: skip
def test_what_arrives_of_a_message_is_what_is_stored(message: Any, arrives: Any) -> None:
    played = play([text("ok")], message, context_window=1_000_000)
    assert played.server.bodies[0]["messages"][1]["content"] == arrives
    assert played.result.messages[0]["content"] == arrives


@pytest.mark.behaviour("PREP-02", "FIN-16")
def test_the_result_reads_like_a_dict(agent: MakeAgent) -> None:
    result = agent(text("hi")).run_conversation("go")
    assert isinstance(result, TurnResult)
    assert result["final_response"] == result.final_response == "hi"
    assert result.get("nothing", 5) == 5
    assert dict(result).keys() == TurnResult.model_fields.keys()
    assert "completed" in result
    with pytest.raises(KeyError):
        result["nothing"]


def test_without_a_key_or_a_server_the_offline_demo_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OLLAMA_BASE_URL", "LMSTUDIO_BASE_URL", "LLAMACPP_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/v1")
    one = Agent()
    assert "no language model was used" in one.chat("what is 12*(3+4)?")


@pytest.mark.behaviour("PREP-08")
def test_two_agents_with_one_session_share_it(agent: MakeAgent) -> None:
    one = agent(text("noted"), session_id="shared")
    one.chat("remember 7")
    two = agent(text("7"), session_id="shared")
    result = two.run_conversation("what was it?")
    assert [row["content"] for row in result.messages] == ["remember 7", "noted", "what was it?", "7"]


def test_usage_of_the_session_adds_up(agent: MakeAgent) -> None:
    one = agent(text("a"), text("b"))
    first, second = one.run_conversation("1"), one.run_conversation("2")
    assert second.usage_session.total == first.total_tokens + second.total_tokens


def test_a_scripted_model_from_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    calls = '{"calls": [{"name": "calculate", "arguments": {"expression": "6*7"}}]}'
    script.write_text(f'{calls}\n{{"status": 503}}\n"42"\n')
    result = Agent(f"scripted:{script}", clock=FakeClock()).run_conversation("go")
    assert (result.final_response, result.attempts) == ("42", 3)
    script.write_text('"fine"\n{"txt": 3}\n')
    with pytest.raises(ConfigError, match="line 2 is not a reply"):
        Agent(f"scripted:{script}")


@pytest.mark.behaviour("FSM-15")
def test_all_arguments_are_options_with_a_meaning_and_a_default() -> None:
    """``AgentArguments`` is the one list of arguments: children and the command line make agents of it, and editors
    show it."""
    options = Agent("offline:demo").options
    keywords = signature(Agent).parameters["more"].annotation
    assert keywords == "Unpack[AgentArguments]"
    assert set(options) == {"model", "output_type", *AgentArguments.__annotations__}
    described = re.findall(r'^    (\w+): .*\n    """', getsource(AgentArguments), re.MULTILINE)
    assert described == list(AgentArguments.__annotations__)


@pytest.mark.parametrize("name", ["tools", "hooks", "input_guardrails", "output_guardrails"])
def test_one_value_where_several_are_taken_is_one_line(name: str) -> None:
    for given in (print, "lookup", 7):
        with pytest.raises(ConfigError, match=rf"{name} has the wrong type; given: .*{name}=\[…\]"):
            Agent("offline:demo", **{name: given})


def test_a_fork_at_an_invalid_number_fails_with_one_line(agent: MakeAgent) -> None:
    with agent(text("ok")) as one:
        turn = one.run_conversation("go").turn_id
        for given in ("3", 1.5, True):
            with pytest.raises(ConfigError, match=r"move has the wrong type; given: .*a number, 0 to"):
                one.fork(turn, at=given)


def test_a_setting_may_be_named_as_on_the_command_line(agent: MakeAgent) -> None:
    settings = {"limits.turn.usd": 1, "limits": {"turn": {"tokens": 9}}, "max_iterations": 3}
    with agent(text("ok"), settings=settings) as one:
        turn = one.settings.limits.turn
        assert (turn.usd, turn.tokens, one.settings.max_iterations) == (1, 9, 3)
    line = r"unknown setting limits\.turn\.usdd; given: 1; allowed: limits\.turn\.usd, perhaps"
    with pytest.raises(ConfigError, match=line):
        agent(text("ok"), settings={"limits.turn.usdd": 1})


def city(city: str) -> str:
    """Takes a text."""
    return city


def test_an_agent_is_closed_by_the_end_of_its_block(agent: MakeAgent) -> None:
    ends: list[str] = []

    def ending() -> Agent:
        return agent(text("ok"), tools=[replace(as_tool(city), closer=lambda: ends.append("closed"))])

    with ending() as one:
        assert one.chat("go") == "ok"
        assert not ends
    assert len(ends) == 1

    async def main() -> None:
        async with ending() as one:
            assert (await one.arun("go")).final_response == "ok"
        assert len(ends) == 2
        with pytest.raises(ZeroDivisionError):
            async with ending():
                raise ZeroDivisionError
        assert len(ends) == 3

    asyncio.run(main())


ROOT = Path(__file__).parents[2]
MARK = "SECRET-OF-THE-MACHINE"
FORMS = [("chat_completions", "openai"), ("codex_responses", "openai"), ("anthropic_messages", "anthropic")]


@tool(effect="pure")
def lookup(city: str) -> str:
    return f"{city}: sunny"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder and a home that are full of what an agent of this machine reads."""
    home, work = tmp_path / "home", tmp_path / "SECRET-folder"
    for folder in (home / "skills" / "one", work / ".agents" / "skills" / "two"):
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(f"---\nname: {folder.name}\ndescription: {MARK}\n---\n")
    for file in ("SOUL.md", "MEMORY.md", "USER.md"):
        (home / file).write_text(MARK)
    for file in ("AGENTS.md", "CLAUDE.md", "FSM_AGENT.md"):
        (work / file).write_text(MARK)
    (home / "config.toml").write_text("[mcp.servers.local]\ncommand = 'no-such-program'\n")
    monkeypatch.chdir(work)
    return work


def told(body: dict[str, Any]) -> str:
    """The system prompt of a request of any form."""
    rows = [row for row in body.get("messages", ()) if row["role"] in ("system", "developer")]
    said = body.get("instructions") or body.get("system") or "".join(row["content"] for row in rows)
    return said if isinstance(said, str) else "".join(part["text"] for part in said)


def offered(body: dict[str, Any]) -> list[str]:
    return [one.get("name") or one["function"]["name"] for one in body.get("tools", ())]


@pytest.mark.behaviour("AGT-11")
def test_the_first_program_of_the_readme_sends_its_prompt_and_its_tool_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    names: dict[str, Any] = {}
    script = [tools(call("lookup", {"city": "Oslo"})), text("Sunny."), text("Rome, too.")]
    with ScriptedServer(script) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        exec(program[1], names)
        names["agent"].close()
    assert [(told(body), offered(body)) for body in server.bodies] == [
        ("You answer questions about the weather.", ["lookup"])
    ] * 3
    sent = json.dumps(server.bodies)
    assert not [word for word in (MARK, "SECRET-folder", "Python:", "Date:", "Work until") if word in sent]


@pytest.mark.parametrize(("form", "provider"), FORMS)
@pytest.mark.behaviour("PROMPT-21")
def test_without_built_in_tools_the_prompt_is_the_one_given(form: str, provider: str, place: Path) -> None:
    with ScriptedServer(repeat(text("hi"))) as server:
        for prompt in ("You are a bank clerk.", "", None):
            with Agent(
                f"{provider}:m", base_url=server.url, api_key="k", api_mode=form, tools=[lookup], system_prompt=prompt
            ) as one:  # fmt: skip
                assert one.chat("hello") == "hi"
    first, empty, none = map(told, server.bodies)
    assert (first, empty) == ("You are a bank clerk.", "")
    assert none.startswith("You are a capable assistant.\n\nWork until")
    sent = json.dumps(server.bodies)
    assert not [word for word in (MARK, "SECRET-folder", "System:", "Date:") if word in sent]


@pytest.mark.parametrize(
    ("asked", "there", "not_there"),
    [
        ({"machine": True}, ("Working directory: ", "System: ", "Date: "), (MARK, "Work until")),
        ({"context_files": True}, (MARK,), ("Working directory: ", "Date: ", "Work until")),
        ({"enforce_tool_use": True}, ("make the tool call",), ("Working directory: ", MARK)),
    ],
)
@pytest.mark.behaviour("PROMPT-21")
def test_a_setting_brings_a_part_of_the_rest_back(
    asked: dict[str, Any], there: tuple[str, ...], not_there: tuple[str, ...], place: Path
) -> None:
    model = ScriptedModel([text("hi")])
    Agent(model, tools=[lookup], system_prompt="A clerk.", settings={"prompt": asked}).chat("go")
    prompt = told(model.requests[0])
    assert prompt.startswith("A clerk.\n\n")
    assert [one for one in there if one not in prompt] == [one for one in not_there if one in prompt] == []


@pytest.mark.behaviour("PROMPT-21")
def test_with_built_in_tools_all_layers_are_there_unless_a_setting_leaves_one_out(place: Path) -> None:
    for prompt, missing in (
        ({}, []),
        ({"machine": False, "context_files": False}, ["Working directory: ", "Date: "]),
    ):
        model = ScriptedModel([text("hi")])
        options: dict[str, Any] = {"system_prompt": "A clerk.", "settings": {"prompt": prompt}}
        Agent(model, toolsets="default", mcp={}, **options).chat("go")
        said = told(model.requests[0])
        layers = "A clerk.|Work until|# Skills|# Memory|# The user|Working directory: |Date: "
        assert [layer for layer in layers.split("|") if layer not in said] == missing
        assert ("# Instructions of this project" in said) == (not missing)


def has(made: Agent[Any, Any]) -> set[str]:
    with made:
        return {one.name for one in made.tools} & {"lookup", "terminal", "write_file", "web_fetch", "memory"}


@pytest.mark.behaviour("AGT-11")
def test_tools_that_are_named_are_all_that_there_are(place: Path) -> None:
    other = Agent("offline:demo", name="other", tools=[])
    built_in = {"terminal", "write_file"}
    assert has(Agent("offline:demo", tools=[lookup])) == {"lookup"}
    assert has(Agent("offline:demo", tools=[])) == set()
    assert has(Agent("offline:demo", handoffs=[other])) == set()
    assert has(Agent("offline:demo", mcp={"x": {"command": "no-such-program"}})) == set()
    assert has(Agent("offline:demo", tools=[lookup], toolsets=["web"])) == {"lookup", "web_fetch"}
    assert has(Agent("offline:demo", tools=[lookup], toolsets="default")) >= {"lookup", *built_in}
    assert has(Agent("offline:demo", toolsets=["default", "web"])) >= {"web_fetch", *built_in}
    assert has(Agent("offline:demo")) >= built_in
    assert Agent("offline:demo").options["toolsets"] == DEFAULT_TOOLSETS


@pytest.mark.behaviour("AGT-11")
def test_a_child_has_no_more_than_its_parent_was_given(place: Path) -> None:
    child = Agent(ScriptedModel([text("done")]), name="child", tools=[lookup], system_prompt="A child.")
    boss = Agent(ScriptedModel([tools(call("child", {"task": "go"})), text("ok")]), tools=[child.as_tool()])
    boss.chat("go")
    model = child.options["model"]
    assert isinstance(model, ScriptedModel)
    body = model.requests[0]
    assert told(body).startswith("A child.\n\nYou work on one task for another assistant.")
    assert (MARK in str(body), offered(body)) == (False, ["lookup"])
    model = ScriptedModel([tools(call("delegate_task", {"goal": "look"})), text("child"), text("ok")])
    Agent(model, tools=[lookup], toolsets=["delegate"], mcp={}).chat("go")
    assert [set(offered(one)) - {"delegate_task"} for one in model.requests] == [{"lookup"}] * 3
