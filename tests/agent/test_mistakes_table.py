"""Mistakes that builders made, as they made them: each is answered by one line that says what is wrong, what was
given, and what is allowed instead."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fsm_agent
from fsm_agent import Agent, BaseTurn, Workflow, tool
from fsm_agent.errors import FsmAgentError
from fsm_agent.fsm import table
from fsm_agent.fsm.condition_parser import condition
from fsm_agent.options import AgentArguments, TurnArguments, TurnOptions
from fsm_agent.settings import Settings
from fsm_agent.testing import ScriptedModel, call, text, tools
from tests.helpers.harness import MakeAgent

PARTS = {"Pack": [table.on("packed", table.end("fine", "Over"), why="it is closed")]}
TABLE = table.Table("parcel", ("Pack", "Over"), "Over", counters=(), lines=table.lines_of(PARTS))


@dataclass
class Parcel(BaseTurn):
    what: str = ""


def pack(turn: Any) -> Any:
    yield from ()
    return "packed"


async def perform(request: Any) -> int:
    return 1


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(approval="ask")
def pay(euros: int) -> str:
    """Pay."""
    return "paid"


def flow(**more: Any) -> Workflow[Any]:
    made = {"table": TABLE, "states": {"Pack": pack}, "turn": Parcel, "perform": perform}
    return Workflow(**{**made, **more})


NAMES = {
    **{name: getattr(fsm_agent, name) for name in fsm_agent.__all__},
    **{name: getattr(table, name) for name in ("Table", "Rung", "end", "go", "left", "lines_of", "on")},
    **{one.__name__: one for one in (add, call, dataclass, field, flow, pay, perform, pack, text)},
    "Any": Any,
    "ClassVar": ClassVar,
    "Parcel": Parcel,
    "PARTS": PARTS,
    "TABLE": TABLE,
    "ScriptedModel": ScriptedModel,
}

# title: (a program, as typed; what its last line raises or is, and what is logged; … for what may vary)
MISTAKES: dict[str, tuple[str, str]] = {
    "a tool that is not in a list": (
        "agent(tools=add)",
        "tools has the wrong type; given: function add; allowed: a list, also of one: tools=[…]",
    ),
    "a hook that is not in a list": (
        """
from fsm_agent import Hooks
class Log(Hooks): ...
agent(hooks=Log())
""",
        "hooks has the wrong type; given: Log object; allowed: a list, also of one: hooks=[…]",
    ),
    "toolsets that are not a list": (
        'agent(toolsets="terminal")',
        'toolsets has the wrong type; given: terminal; allowed: a list of names, "default" for what '
        "an agent without tools has, or [] for none",
    ),
    "a prompt for one turn that is not a text": (
        'agent().run_conversation("hi", system_message=["Be brief."])',
        "system_message has the wrong type; given: ['Be brief.']; allowed: a text, or None",
    ),
    "a budget as a number": (
        "agent(budget=100)",
        "budget has the wrong type; given: 100; allowed: IterationBudget(100), of fsm_agent.runtime.budget",
    ),
    "a misspelt toolset": (
        'agent(toolsets=["termnal"])',
        "unknown toolset; given: termnal; allowed: terminal, perhaps; …",
    ),
    "a misspelt option of a tool": (
        """
@tool(efect="pure")
def book() -> str: ...
""",
        "unknown option of @tool; given: efect; allowed: effect, perhaps; …",
    ),
    "a result of a call as a tool": (
        "agent(tools=[add(1, 2)])",
        "not a tool; given: 3; allowed: a function, or what @tool returns",
    ),
    "an agent as a tool": (
        "agent(tools=[agent()])",
        "not a tool; given: Agent object; allowed: agent.as_tool(…)",
    ),
    "two tools of one name": (
        "agent(tools=[add, add])",
        "two tools have the same name; given: add; allowed: names that differ",
    ),
    "a method without its object": (
        """
class Shop:
    def book(self, day: str) -> str: ...
agent(tools=[Shop.book])
""",
        "tool 'book' is a method without its object; given: function book; allowed: tool(object.method)",
    ),
    "a generator as a tool": (
        """
def rows(n: int):
    yield n
agent(tools=[rows])
""",
        "tool 'rows' is a generator; given: function rows; allowed: a function that returns its result",
    ),
    "a context without a type": (
        """
def book(ctx, day: str) -> str: ...
agent(tools=[book])
""",
        "the first parameter of tool 'book' has no type; given: ctx; allowed: ctx: RunContext for "
        "what a tool can know of its turn, else the type of an argument that the model gives",
    ),
    "a described parameter that is not there": (
        """
def book(day: str) -> str:
    '''Book.

    Args:
        date: The day.
    '''
agent(tools=[book])
""",
        "the docstring of tool 'book' describes a parameter that is not there; given: date; allowed: day",
    ),
    "a schema as output type": (
        'agent(output_type={"type": "object"})',
        "output_type is a mapping; given: {'type': 'object'}; allowed: JsonSchema({…}) for a JSON "
        "schema, or a type",
    ),
    "a class that no schema describes": (
        """
class Person: ...
agent(output_type=Person)
""",
        "output_type yields no schema (Unable to generate pydantic-core schema for <class "
        "'__main__.Person'>); given: class Person; allowed: a type that pydantic can describe in "
        "JSON schema, a function with annotated parameters, or JsonSchema",
    ),
    "the name that another library has": (
        'agent(instructions="Be brief.")',
        "unknown argument of Agent; given: instructions; allowed: system_prompt=",
    ),
    "an argument of a type checker": (
        "agent(deps_type=int)",
        "unknown argument of Agent; given: deps_type; allowed: Agent[Deps](…), for type checkers",
    ),
    "a setting by its dotted name": (
        'agent(settings={"limits.turn.usd": -1})',
        "setting limits.turn.usd is out of range; given: -1; …",
    ),
    "a setting as an argument": (
        "agent(max_iterations=3)",
        'unknown argument of Agent; given: max_iterations; allowed: settings={"max_iterations": …}',
    ),
    "a misspelt argument": (
        "agent(toolset=[])",
        "unknown argument of Agent; given: toolset; allowed: toolsets, perhaps; all of them: model, base_url…",
    ),
    "a misspelt setting": (
        'agent(settings={"max_iteration": 3})',
        "unknown setting max_iteration; given: 3; allowed: max_iterations, perhaps; fsm-agent config "
        "list has all",
    ),
    "a setting out of its range": (
        'agent(settings={"max_iterations": -1})',
        "setting max_iterations is out of range; given: -1; allowed: whole number 0 to 100,000",
    ),
    "a word that a setting does not have": (
        'agent(settings={"approval": {"unanswered": "maybe"}})',
        "setting approval.unanswered is out of range; given: maybe; allowed: deny, suspend",
    ),
    "another database": (
        'agent(settings={"store": {"database_url": "mysql://x"}})',
        "setting store.database_url is out of range; given: an address that begins with mysql://; "
        "allowed: an address that begins with postgresql://",
    ),
    "limits as a mapping": (
        'agent(limits={"usd": 1})',
        "limits has the wrong type; given: {'usd': 1}; allowed: Limits(usd=…, tokens=…, seconds=…), or None",
    ),
    "a limit below zero": (
        """
from fsm_agent import Limits
Limits(usd=-1)
""",
        "limit usd is out of range; given: -1; allowed: number above 0 to 1,000,000",
    ),
    "a misspelt limit": (
        """
from fsm_agent import Limits
Limits(dollars=1)
""",
        "there is no such limit; given: dollars; allowed: usd, tokens, seconds",
    ),
    "a system prompt that is not text": (
        "agent(system_prompt=3)",
        "system_prompt has the wrong type; given: 3; allowed: a text",
    ),
    "a session that is not text": (
        "agent(session_id=3)",
        "session_id has the wrong type; given: 3; allowed: a text",
    ),
    "a fallback that is not in a list": (
        'agent(fallbacks="openai:gpt-5")',
        'fallbacks has the wrong type; given: openai:gpt-5; allowed: a list: [{"model": …}]',
    ),
    "toolsets as a number": (
        "agent(toolsets=7)",
        "toolsets has the wrong type; given: 7; allowed: a list of names, …",
    ),
    "a tool with parameters of any number": (
        """
def book(*days: int) -> str: ...
agent(tools=[book])
""",
        "tool 'book' has a parameter that yields no schema; given: *days: int; allowed: named parameters "
        "that can be passed by keyword",
    ),
    "a fallback without a model": (
        'agent(fallbacks=[{"base_url": "x"}])',
        "fallback 1 is not usable; given: {'base_url': 'x'}; allowed: a dict with model and …",
    ),
    "a misspelt key of a fallback": (
        'agent(fallbacks=[{"model": "offline:demo", "key": "x"}])',
        "fallback 1 has an unknown key; given: key; allowed: model, base_url, api_key, api_mode, context_window",
    ),
    "a number of tries below one": (
        'agent(settings={"api_max_retries": 0})',
        "setting api_max_retries is out of range; given: 0; allowed: whole number 1 to …",
    ),
    "settings that are no mapping": (
        "agent(settings=3)",
        "settings have the wrong type; given: 3; allowed: a Settings instance or a mapping",
    ),
    "a number as auxiliary model": (
        "agent(auxiliary=3)",
        "auxiliary has the wrong type; given: 3; allowed: a model, a list of them, or a dict by task",
    ),
    "a number as home": ("agent(home=3)", "home has the wrong type; given: 3; allowed: a path"),
    "a number as store": ("agent(store=3)", "store has the wrong type; given: 3; allowed: a Store"),
    "a number as folder": ("agent(workdir=3)", "workdir has the wrong type; given: 3; allowed: a path"),
    "a folder that is not there": (
        'agent(workdir="not/there")',
        "workdir is not a folder; given: not/there; allowed: a folder that is there",
    ),
    "a model that is not text": (
        """
from fsm_agent import Agent
Agent(3)
""",
        'model has the wrong type; given: int; allowed: "<provider>:<model>" or a model port',
    ),
    "a clock of another type": (
        "agent(clock=3)",
        "clock has the wrong type; given: 3; allowed: an object with now() and sleep(seconds)",
    ),
    "a misspelt provider": (
        """
from fsm_agent import Agent
Agent("opnai:gpt-5")
""",
        "model names an unknown provider 'opnai'; given: opnai:gpt-5; allowed: openai, perhaps; …",
    ),
    "a model without its provider": (
        """
from fsm_agent import Agent
Agent("gpt-5")
""",
        "model names no provider; given: gpt-5; allowed: '<provider>:<model>' with a provider of "
        "openai, openai-responses, anthropic, openrouter, deepseek, moonshot, mistral, groq, gemini, "
        "qwen, zai, xai, azure, vertex, bedrock, ollama, lmstudio, llamacpp, vllm, local, offline, "
        "scripted",
    ),
    "a server without TLS": (
        'agent(mcp={"shop": {"url": "http://example.org"}})',
        "mcp.servers.shop cannot be used; given: url http://example.org; allowed: https://, http:// "
        "to this machine, or plain_http = true to send without TLS",
    ),
    "a misspelt key of a server": (
        'agent(mcp={"shop": {"comand": "shop"}})',
        "unknown key mcp.servers.shop.comand; allowed: command, args, env, cwd, url, headers, "
        "plain_http, oauth, roots, trust, approval, effect, timeout, include, exclude, tools, enabled",
    ),
    "an approval that a server does not have": (
        'agent(mcp={"shop": {"command": "shop", "approval": "maybe"}})',
        "mcp.servers.shop.approval cannot be used; given: maybe; allowed: never, ask",
    ),
    "a misspelt method of a hook": (
        """
from fsm_agent import Hooks
class Guard(Hooks):
    def before_tools(self, context, call): ...
agent(hooks=[Guard()])
""",
        "hook Guard has a method that is never called; given: before_tools; allowed: before_tool, "
        "perhaps; …; a helper begins with _",
    ),
    "a method of a hook with other values": (
        """
from fsm_agent import Hooks
class Guard(Hooks):
    def before_tool(self, call): ...
agent(hooks=[Guard()])
""",
        "before_tool of hook Guard takes other values; given: (call); allowed: (context, call)",
    ),
    "a class in the place of a hook": (
        """
from fsm_agent import Hooks
class Guard(Hooks): ...
agent(hooks=[Guard])
""",
        "not a hook; given: class Guard; allowed: objects of classes made from fsm_agent.hooks.Hooks",
    ),
    "a guardrail with one parameter": (
        "agent(input_guardrails=[lambda text: None])",
        "guardrail <lambda> takes other values; given: (text); allowed: (context, text)",
    ),
    "a misspelt callback": (
        'agent(callbacks={"aproval": print})',
        "unknown callback; given: aproval; allowed: approval, perhaps; …",
    ),
    "a callback that is not a function": (
        'agent(callbacks={"approval": True})',
        "callback approval cannot be called; given: True; allowed: a function, sync or async",
    ),
    "a function in the place of callbacks": (
        "agent(callbacks=print)",
        "callbacks has the wrong type; given: function print; allowed: a mapping or an object with "
        "tool_start, tool_complete, tool_progress, thinking, reasoning, stream_delta, "
        "output_partial, tool_gen, interim_assistant, step, status, transition, event, speech_delta, "
        "approval, clarify, before_tool, after_tool, context, transform",
    ),
    "an approval in another word": (
        'result_of(call("pay", {"euros": 1}), tools=[pay], callbacks={"approval": lambda asked: "approve"})',
        "denied: the approval callback answered 'approve'; allowed: True, False, an Approval, "
        '"once", "session", "always", "deny", "never". Do not try the same thing in other words; ask '
        "the user or continue without.",
    ),
    "a check that answers something else": (
        'result_of(call("add", {"a": 1, "b": 2}), tools=[add], callbacks={"before_tool": lambda name: 3})',
        'denied: the callback before_tool answered 3; allowed: None, "approve", "block", ("block", '
        "why). Do not try the same thing in other words; ask the user or continue without.",
    ),
    "a transform that answers something else": (
        'agent(callbacks={"transform": lambda text: 3}).run_conversation("hi").error',
        "callback transform changes nothing; given: int; allowed: a text or None",
    ),
    "a hook that answers something else": (
        """
from fsm_agent import Hooks
class Guard(Hooks):
    def before_tool(self, context, call): return "no"
result_of(call("add", {"a": 1, "b": 2}), tools=[add], hooks=[Guard()])
""",
        "not run: hook Guard answered with str: a mapping of arguments, Answer, Block, WakeAt or "
        "None is allowed",
    ),
    "a guardrail that answers something else": (
        'agent(input_guardrails=[lambda context, text: "no"]).run_conversation("hi").error',
        "A guardrail stopped the turn: guardrail <lambda> answered with str: None or Block or "
        "Rewrite is allowed.",
    ),
    "a synchronous call in a running loop": (
        """
import asyncio
async def cell():
    agent().run_conversation("hi")
asyncio.run(cell())
""",
        "run_conversation blocks the event loop that it is called in until the turn has ended; use "
        "await agent.arun(…) there",
    ),
    "an empty message": (
        'agent().chat("")',
        "the message is empty; given: ''; allowed: some text, or a content part",
    ),
    "a message of another type": (
        "agent().chat(3)",
        "the message has the wrong type; given: int; allowed: text, or a list of content parts",
    ),
    "a misspelt role": (
        'agent().run_conversation("hi", conversation_history=[{"rol": "user"}])',
        "not a message; given: {'rol': 'user', 'content': None}; allowed: a mapping with role in "
        "system, user, assistant, tool",
    ),
    "a tool that needs deps": (
        """
from fsm_agent import RunContext
def book(context: RunContext[int]) -> str: ...
agent(tools=[book]).chat("hi")
""",
        "tool 'book' needs deps; allowed: deps= of type int",
    ),
    "nothing to resume": (
        'agent().resume("t-1")',
        "no such session; given: t-1; allowed: an id, its beginning, or a title; the newest: none yet",
    ),
    "an answer to nothing": (
        'agent().answer("a-1", "approve")',
        "nothing of this id waits; given: a-1; allowed: nothing waits for an answer",
    ),
    "a move as a text": (
        """
one = agent()
turn = one.run_conversation("hi").turn_id
one.fork(turn, at="3")
""",
        "the number of a move has the wrong type; given: 3; allowed: a number, 0 to 3",
    ),
    "a move that was not made": (
        """
one = agent()
turn = one.run_conversation("hi").turn_id
one.fork(turn, at=300)
""",
        "turn … has no move of that number; given: 300; allowed: 0 to 3",
    ),
    "a misspelt edit": (
        """
one = agent()
turn = one.run_conversation("hi").turn_id
one.fork(turn, at=2, edit={"counter": {}})
""",
        "a turn cannot be edited so; given: counter; allowed: counters, fields, messages, reply, "
        "results, settings, system_prompt, user_message, rerun_tools, "
        "recorded_replies",
    ),
    "a script of words": (
        'ScriptedModel("Hello!")',
        "a script has an entry that is not a reply; given: Hello!; allowed: text(…), tools(call(…)), or "
        "another reply of fsm_agent.testing; a function of the request",
    ),
    "a misspelt state": (
        'flow(states={"Pak": pack})',
        "table parcel has no state of this name; given: Pak; allowed: Pack, perhaps; all of them: Pack, Over",
    ),
    "an async state": (
        """
async def pack(turn): ...
flow(states={"Pack": pack})
""",
        "Pack of parcel cannot be async; given: pack; allowed: a generator function, which asks by "
        "yield for what is awaited elsewhere",
    ),
    "a state that is a plain function": (
        'flow(states={"Pack": lambda turn: "packed"}).start(Parcel()).run()',
        "parcel: Pack failed: TypeError: Pack is not a generator function; given: str 'packed'; "
        "allowed: a function with a yield; `yield from ()` when it asks for nothing (the turn waits "
        "until that is fixed; with a line for 'crashed' it would end)",
    ),
    "a forgotten dataclass": (
        """
from fsm_agent import BaseTurn
class Order(BaseTurn):
    what: str = ""
flow(turn=Order)
""",
        "Order is not a dataclass itself, so its fields are not stored; given: what; allowed: "
        "@dataclass before class Order",
    ),
    "an exit that the table does not have": (
        """
from fsm_agent import BaseTurn
@dataclass
class Order(BaseTurn):
    outcomes: ClassVar = {"fne": "completed"}
flow(turn=Order)
""",
        "Order.outcomes has an exit that table parcel has not; given: fne; allowed: fine, perhaps; "
        "all of them: fine",
    ),
    "an unknown outcome": (
        """
from fsm_agent import BaseTurn
@dataclass
class Order(BaseTurn):
    outcomes: ClassVar = {"fine": "complete"}
flow(turn=Order)
""",
        "Order.outcomes has no such outcome for fine; given: complete; allowed: completed, failed, "
        "partial, interrupted",
    ),
    "a value that cannot be stored": (
        """
from fsm_agent import BaseTurn
@dataclass
class Order(BaseTurn):
    what: Any = None
flow(turn=Order).start(Order({1, 2}))
""",
        "Order.what cannot be stored; given: set {1, 2}; allowed: JSON values: None, bool, int, float, "
        "str, list, dict with str keys; or another annotation",
    ),
    "None where a dataclass is": (
        """
from fsm_agent import BaseTurn
@dataclass
class Order(BaseTurn):
    parcel: Parcel = None
flow(turn=Order).start(Order())
""",
        "Order.parcel cannot be stored; given: None; allowed: Parcel",
    ),
    "a performer under a name": (
        'flow(perform={"Weigh": perform})',
        "what performs requests is listed by their class; given: Weigh; allowed: {Class: async def, …}",
    ),
    "a performer that is not async": (
        """
@dataclass
class Weigh: ...
def ask(turn):
    yield Weigh()
flow(states={"Pack": ask}, perform=lambda request: 1).start(Parcel()).run()
""",
        "parcel: Pack failed: ConfigError: what performs Weigh is not async; given: int 1; allowed: "
        "async def <lambda>(request) (the turn waits until that is fixed; with a line for 'crashed' "
        "it would end)",
    ),
    "words in the place of a turn": (
        'flow().start("a vase")',
        "the turn is of another class; given: str; allowed: Parcel",
    ),
    "a turn that has ended": (
        """
one = flow()
ended = one.start(Parcel()).run().turn
one.start(ended)
""",
        "the turn has moved already; given: …; allowed: a new one; resume(id) continues one that is stored",
    ),
    "a state that is missing": (
        'Table("parcel", ("Pack",), "Over", counters=(), lines=lines_of(PARTS))',
        "parcel: the final state 'Over' is not one of the states; there are Pack",
    ),
    "a state in two spellings": (
        """
PARTS = {"Pack": [on("packed", end("fine", "Ovr"), why="")]}
Table("parcel", ("Pack", "Over"), "Over", counters=(), lines=lines_of(PARTS))
""",
        "parcel: Pack.packed: rung '⇥ fine' leads to unknown state 'Ovr'; there are Pack, Over",
    ),
    "a counter that is missing": (
        """
AGAIN = Rung("again", "Pack", left("tries"), ("tries",))
PARTS = {"Pack": [on("torn", AGAIN, end("gone", "Over"), why="")]}
Table("parcel", ("Pack", "Over"), "Over", counters=(), lines=lines_of(PARTS))
""",
        "parcel: Pack.torn: rung 'again' names unknown counter(s) tries; there are none: "
        "counters=(Counter(…), …)",
    ),
}


AWKWARD: tuple[Any, ...] = (
    5, -1, 0, 1.5, float("nan"), 10**30, True, "x", "", "a\0b", "\ud800", b"x", [], [5], {}, {"a": 1}, object(),
    type, print,
)  # fmt: skip
"""Values that are hardly ever meant."""
TURNS = ("output_type", *dict.fromkeys((*TurnArguments.__annotations__, *TurnOptions.__annotations__)))
METHODS: dict[str, Callable[[Agent[Any, Any], Any], object]] = {
    "resume": lambda one, value: one.resume(value),
    "fork": lambda one, value: one.fork(value, 0),
    "at": lambda one, value: one.fork(one.journal.recent()[0].id, value),
    "edit": lambda one, value: one.fork(one.journal.recent()[0].id, 1, value),
    "answer": lambda one, value: one.answer(value, "once"),
    "rename": lambda one, value: one.rename(value),
    "undo": lambda one, value: one.undo(value),
    "Workflow.start": lambda one, value: flow().start(Parcel(turn_id=value)),
    "Workflow.resume": lambda one, value: flow().resume(value),
    "table": lambda one, value: flow(table=value),
    "states": lambda one, value: flow(states=value),
    "when": lambda one, value: condition(value, ["retries"]),
    "path_arguments": lambda one, value: tool(path_arguments=value)(add),
    "setting": lambda one, value: Settings.of({value: 1} if isinstance(value, Hashable) else value),
    "tool_calls": lambda one, value: one.run_conversation(
        "hi", conversation_history=[{"role": "assistant", "tool_calls": value}]
    ),
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def heard(program: str, caplog: pytest.LogCaptureFixture, agent: MakeAgent) -> str:
    """What a user reads: the error, or what the last line evaluates to, and warnings."""

    def result_of(called: Any, **more: Any) -> str:
        """What the model reads of one call of a tool."""
        return agent(tools(called), text("ok"), **more).run_conversation("hi").messages[-2]["content"]

    *before, last = program.strip().splitlines()
    if last.startswith((" ", "@", "def")):
        before, last = [*before, last], "None"
    names: dict[str, Any] = {
        "__name__": "__main__",
        **NAMES,
        "agent": partial(agent, text("ok")),
        "result_of": result_of,
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            exec(compile("\n".join(before), "program.py", "exec", dont_inherit=True), names)
            said = eval(last, names)
        except FsmAgentError as error:
            said = error
    lines = [str(one.message) for one in warned] + [one.getMessage() for one in caplog.records]
    return "\n".join([*lines, *([] if said is None else [str(said)])])


@pytest.mark.behaviour("BACK-04c")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_by_one_line(
    agent: MakeAgent, mistake: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    program, said = MISTAKES[mistake]
    found = heard(program, caplog, agent)
    assert re.fullmatch(re.escape(said).replace("…", ".*"), found), found


@pytest.mark.parametrize("name", [name for name in AgentArguments.__annotations__ if name != "store"])
def test_no_value_of_an_argument_of_an_agent_ends_in_a_traceback(agent: MakeAgent, name: str) -> None:
    for value in AWKWARD:
        with contextlib.suppress(FsmAgentError), agent(text("ok"), **{name: value}) as made:
            made.chat("hi")


@pytest.mark.parametrize("name", TURNS)
def test_no_value_of_an_argument_of_a_turn_ends_in_a_traceback(agent: MakeAgent, name: str) -> None:
    for value in AWKWARD:
        with contextlib.suppress(FsmAgentError), agent(text("ok")) as made:
            made.run_conversation("hi", **{name: value})


@pytest.mark.parametrize("method", METHODS)
def test_no_value_that_a_method_gets_ends_in_a_traceback(agent: MakeAgent, method: str) -> None:
    with agent(text("ok")) as made:
        made.chat("hi")
        for value in AWKWARD:
            with contextlib.suppress(FsmAgentError):
                METHODS[method](made, value)
