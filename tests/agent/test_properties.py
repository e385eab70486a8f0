"""Random turns against the whole engine: any script of replies, any moment of interrupt, any small limits.

Everything runs in the process (scripted ports, a fake clock), so that thousands of turns take seconds. A
failing case prints as ``Case(script=[...], ...)``; it belongs, made small, among the examples of
``test_random_turns``."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.conversation.effects import Failure
from fsm_agent.conversation.history import violations
from fsm_agent.conversation.messages import Message, Usage
from fsm_agent.fsm.journal import Step
from fsm_agent.runtime.budget import IterationBudget
from fsm_agent.runtime.callbacks import CHANNELS
from fsm_agent.sessions import Session
from fsm_agent.sessions.store import Store, store_for
from fsm_agent.testing import FakeClock, ScriptedModel, call, cut, no_finish, repeat, silence, text, tools
from fsm_agent.testing.strategies import KINDS, Moment, moments, small_settings, windows
from fsm_agent_states import replies
from fsm_agent_states.table import TURN
from tests.helpers import sample
from tests.helpers.harness import SHOWN, Refreshable, assert_legal_path, assert_released, talk
from tests.helpers.shape_watch import ShapeWatch

HUGE = "a long line of a tool's result\n" * 150
SAID = " words and more words " * 30
SMALL_RESULTS = {"max_result_chars": 2_000, "turn_result_chars": 3_000, "preview_chars": 200}
SCAFFOLDS = tuple(
    max(re.split(r"\{\w+\}", value), key=len)
    for value in (
        *(value for name, value in vars(replies).items() if name.isupper() and isinstance(value, str)),
        *(rule.says for rule in replies.CONTINUED.values() if rule.says),
    )
)

# Replies by name


REPLIES: dict[str, Any] = {
    **KINDS,
    "echo": tools(call("echo", {"text": "a"})),
    "two": tools(call("echo", {"text": "a"}), call("put", {"key": "k"})),
    "three": tools(call("echo", {"text": "a"}), call("echo", {"text": "b"}), call("echo", {"text": "c"}),
                   text="so:"),
    "same twice": tools(call("echo", {"text": "a"}, "same"), call("echo", {"text": "a"}, "same")),
    "duplicate ids": tools(call("put", {"key": "a"}, "id"), call("put", {"key": "b"}, "id"),
        call("echo", {}, "id")),
    "reused id": tools(call("put", {"key": "a"}, "call_0")),
    "no id": tools(call("put", {"key": "a"}, "")),
    "unknown": tools(call("nope")),
    "unknown and echo": tools(call("nope"), call("echo")),
    "blank name": tools(call("")),
    "repairable name": tools(call("Echo_Tool", {"text": "r"})),
    "bad json and echo": tools(call("echo", '{"text": }'), call("echo", {"text": "a"})),
    "array": tools(call("echo", "[1, 2]")),
    "wrong type": tools(call("echo", {"text": {"a": 1}})),
    "surrogate": tools(call("echo", '{"text": "\\ud800"}'), text="\ud800 and \x00"),
    "todo": tools(call("todo"), text="All done."),
    "write": tools(call("write", {"path": "a"})),
    "code": tools(call("execute_code")),
    "fail": tools(call("fail")),
    "huge": tools(call("huge"), call("huge", {"n": 2})),
    "stuck": tools(call("stuck")),
    "risky": tools(call("risky"), call("echo")),
    "thread": tools(call("thread"), call("thread", {"n": 2})),
    "interrupts": tools(call("echo"), call("interrupts"), call("put", {"key": "after"})),
    "steers": tools(call("steers")),
    "reasoned call": tools(call("echo"), reasoning="because"),
    "open call": tools(call("echo", '{"text": "abc')),
    "cut call text": cut("half ", call("echo", {"text": "a"})),
    "no finish call": no_finish("", call("echo", {"text": "a"})),
    "no finish open call": no_finish("", call("put", "{}")),
}  # fmt: skip
SILENT = {"silence": "headers", "silence after text": "text so far ", "mute": "connect"}
"""Replies that end only because the clock jumps past the watchdog's limit."""
ENDERS = (
    "text|unreported|thought text|slow|whole|filtered text|length thinking|open think|content filter|refusal|400|403|413"
    "|422|output cap unknown|certificate|local bug|no such model|overflow"
)
ENDING = set(ENDERS.split("|"))
"""Replies that mostly end a turn; the others are drawn more often, so that turns are long."""


# Cases


@dataclass(frozen=True)
class Case:
    """One turn. ``fallbacks``: the windows of the chain behind the primary; ``repeated``: the chain names its
    last entry twice; ``history``: pairs of rows before the turn; ``keys``: 0 to 2, or a source that can be
    ``refreshed`` or is ``refused``; ``budget``: iterations shared with other turns; ``answers``: what a
    person says when asked, ``None`` if no person is there."""

    script: list[str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    window: int | None = None
    fallbacks: list[int | None] = field(default_factory=list)
    repeated: bool = False
    history: int = 0
    keys: int | str = 0
    budget: int | None = None
    answers: list[Any] | None = None
    moments: list[Moment] = field(default_factory=list)


MOMENTS = moments(("start", "model", "wait", "tool", *CHANNELS))
NAMES = [*REPLIES, *SILENT]
GOING_ON = st.sampled_from([name for name in NAMES if name not in ENDING])
ANY = GOING_ON | GOING_ON | GOING_ON | st.sampled_from(NAMES)
AFTER_TOOLS = st.builds(
    lambda first, then: [first, *then],
    st.sampled_from(["echo", "todo", "write", "code", "huge", "no finish call"]),
    st.lists(st.sampled_from(["blank", "reasoning", "text", "length"]), min_size=1, max_size=8),
)
RUNS = st.builds(lambda name, times: [name] * times, ANY, st.integers(1, 7)) | AFTER_TOOLS
SCRIPTS = st.lists(RUNS, max_size=20).map(lambda runs: [name for run in runs for name in run][:60])
CASES = st.builds(
    Case, script=SCRIPTS, settings=small_settings(), window=windows(),
    fallbacks=st.lists(windows(), max_size=2), repeated=st.booleans(), history=st.sampled_from([0, 0, 1, 12]),
    keys=st.sampled_from([0, 1, 2, "refreshed", "refused"]),
    budget=st.sampled_from([None, None, None, None, None, None, 0, 2]),
    answers=st.none() | st.lists(st.sampled_from([True, False, "session", "steer", "interrupt"]), max_size=3),
    moments=st.lists(MOMENTS, max_size=2),
)  # fmt: skip


# The world of a case


class JumpyClock(FakeClock):
    """Tells of every wait."""

    def __init__(self, slept: Callable[[], None]) -> None:
        super().__init__()
        self._slept = slept

    async def sleep(self, seconds: float) -> None:
        self._slept()
        await super().sleep(seconds)


class World:
    """A case in motion: the shared script of all ports, the tools, and the people who interfere."""

    def __init__(self, case: Case, home: Path) -> None:
        self.case = case
        self.clock = JumpyClock(lambda: self.happens("wait"))
        self.left = list(case.script)
        self.after = "the end"
        self.seen: dict[str, int] = {}
        self.steered: list[str] = []
        self.budget = None if case.budget is None else IterationBudget(case.budget)
        self.interrupted_at: int | None = None
        self.ports = [
            ScriptedModel(repeat(self._reply), clock=self.clock) for _ in range(1 + len(case.fallbacks))
        ]
        chain = [
            {"model": port, "context_window": window}
            for port, window in zip(self.ports[1:], case.fallbacks, strict=True)
        ]
        keys: Any = Refreshable(case.keys == "refreshed")
        if isinstance(case.keys, int):
            keys = [f"k{n}" for n in range(case.keys)]
        self.agent = Agent(
            self.ports[0], api_key=keys, context_window=case.window, tools=TOOLS, toolsets=[],
            fallbacks=[*chain, *chain[-1:]] if case.repeated else chain,
            settings={**case.settings, "tool": SMALL_RESULTS, "poll": {"control": 0.001}},
            home=home, callbacks=self._callbacks(), clock=self.clock, budget=self.budget,
        )  # fmt: skip

    @property
    def received(self) -> int:
        return sum(len(port.requests) for port in self.ports)

    @property
    def served(self) -> Usage:
        return sum((port.served_usage for port in self.ports), Usage())

    @property
    def session(self) -> Session:
        return store_for(str(self.agent.home)).session(self.agent.session_id)

    def happens(self, where: str) -> None:
        nth = self.seen[where] = self.seen.get(where, -1) + 1
        for moment in self.case.moments:
            if (moment.where, moment.nth) == (where, nth):
                self.act(moment.what)

    def act(self, what: str) -> None:
        if what == "steer":
            self.steered.append(f"steer-{len(self.steered)}!")
            self.agent.steer(self.steered[-1])
        elif what == "interrupt":
            self.agent.interrupt("stop it")
            self.interrupted_at = self.received if self.interrupted_at is None else self.interrupted_at

    def _reply(self, _: Any) -> Any:
        self.happens("model")
        name = self.left.pop(0) if self.left else ""
        if name in SILENT:
            return silence(SILENT[name], hook=lambda: self.clock.advance(2_000))
        return REPLIES[name] if name else text(self.after)

    def _callbacks(self) -> dict[str, Callable[..., Any]]:
        def listener(channel: str) -> Callable[..., None]:
            return lambda *values: self.happens(channel)

        heard: dict[str, Callable[..., Any]] = {
            name: listener(name) for name in CHANNELS if name != "approval"
        }
        if (answers := self.case.answers) is not None:
            said = list(answers)

            async def approve(_: Any) -> Any:
                self.happens("approval")
                answer = said.pop(0) if said else True
                self.act(str(answer))
                if answer == "interrupt":
                    await asyncio.Event().wait()
                return answer

            heard["approval"] = approve
        return heard


WORLD: ContextVar[World] = ContextVar("WORLD")
"""The case that is being played; tools run in a copy of its context."""


@tool(concurrency="parallel", effect="pure")
async def echo(text: str = "x") -> str:
    WORLD.get().happens("tool")
    await asyncio.sleep(0)
    return text


@tool(effect="unsafe")
async def put(key: str, value: str = "") -> str:
    WORLD.get().happens("tool")
    return f"stored {key}"


@tool(effect="pure")
async def fail() -> str:
    WORLD.get().happens("tool")
    raise RuntimeError("it never works")


@tool(effect="unsafe")
async def stuck() -> str:
    WORLD.get().clock.advance(1_000)
    await asyncio.Event().wait()
    return "never"


@tool(concurrency="parallel")
def thread(n: int = 1) -> str:
    return "from a thread"


@tool
async def interrupts() -> str:
    WORLD.get().act("interrupt")
    await asyncio.Event().wait()
    return "never"


@tool
async def steers() -> str:
    WORLD.get().act("steer")
    return "steered"


def says(name: str, result: str, **options: Any) -> Any:
    """A tool that gives always the same."""

    async def run(path: str = "", n: int = 1) -> str:
        return result

    return tool(name=name, **options)(run)


CONSTANT = (
    says("write", "wrote a", path_arguments=["path"], effect="idempotent"),
    says("huge", HUGE, concurrency="parallel", effect="pure"), says("risky", "done", approval="ask"),
    says("todo", "2 items"), says("execute_code", "42"),
)  # fmt: skip
TOOLS = (echo, put, fail, stuck, thread, interrupts, steers, *CONSTANT)


# What must hold


def after_a_move(
    before: Mapping[str, int], step: Step, snapshot: Mapping[str, Any], world: World, number: int
) -> None:
    row = TURN.row(step.row)
    expected = {name: 0 if name in row.resets else value for name, value in before.items()}
    for name in row.spends:
        expected[name] += 1
    counters, limits = snapshot["counters"], snapshot["limits"]
    assert counters == expected, "only the row's own resets and spends change counters"
    assert (step.seq, step.source, step.event, step.dest) == (number, row.source, row.event, row.dest)
    for name, value in counters.items():
        shared = (
            ("cut_calls", "incompletes", "scratchpads", "acks", "verifies") if name == "continuations" else ()
        )
        assert value <= max(limits.get(limit, 0) for limit in (name, *shared)), name
    assert snapshot["attempts"] == world.received - unsent(world) <= counters["attempts"]
    assert step.event != "crashed" or "local bug" in world.case.script, "a bug of our own"


def unsent(world: World) -> int:
    """Requests that the script itself declares as never sent."""
    gone = world.case.script[: len(world.case.script) - len(world.left)]
    replies = (REPLIES.get(name) for name in gone)
    return sum(isinstance(reply, Failure) and not reply.sent for reply in replies)


def after_the_turn(world: World, result: TurnResult, steps: list[Step]) -> None:
    assert sum(bool(result[name]) for name in SHOWN) == 1
    assert_legal_path(steps, result)
    assert result.attempts == world.received - unsent(world)
    assert result.usage_turn.total == world.served.total
    assert_released(world.agent)
    rows = world.session.rows
    assert [row.to_dict() for row in rows] == result.messages
    assert result.messages[-1]["role"] == "assistant"
    check_pairs(rows)
    check_requests(world)
    archived = store_for(str(world.agent.home)).archived(world.session.id)
    stored = json.dumps([row.to_dict() for row in (*rows, *archived)], ensure_ascii=False)
    for scaffold in SCAFFOLDS:
        assert scaffold not in stored, "scaffolding is never stored"
    pending = [*result.pending_steer, *world.agent.signals.take_steer()]
    for words in world.steered:
        assert words in stored or words in pending, "what the user said is not lost"
    if world.interrupted_at is not None:
        assert world.received <= world.interrupted_at, "nothing is sent after an interrupt"
    if result.interrupted:
        assert result.interrupt_message == "stop it"
    assert result.api_calls <= world.agent.settings.max_iterations
    if world.budget is not None:
        never_sent = 0 if result.completed else 1
        assert 0 <= world.budget.used - result.api_calls <= never_sent, "an iteration is charged once"
    for port in world.ports:
        for body, sent in zip(port.requests, port.sent, strict=True):
            assert "tools" in body or sent.toolless, "only a last word and a summary have no tools"
    if result.completed:
        assert result.final_response
        assert result.error is None
    assert result.error or not result.failed


def check_pairs(rows: list[Message]) -> None:
    """Every call is answered once, right behind it; nothing else is answered."""
    open_calls: list[str] = []
    for row in rows:
        if row.role == "tool":
            assert row.tool_call_id in open_calls
            open_calls.remove(row.tool_call_id)
            continue
        assert not open_calls
        open_calls = [call.id for call in row.tool_calls]
        assert len(set(open_calls)) == len(open_calls)
    assert not open_calls


def check_requests(world: World) -> None:
    assert not [body for port in world.ports for body in port.requests if violations(body["messages"])]


async def play(case: Case, home: Path) -> None:
    world = World(case, home)
    WORLD.set(world)
    world.happens("start")
    turn = world.agent.start("go", conversation_history=talk(case.history, SAID) or None)
    counters: Mapping[str, int] = turn.snapshot()["counters"]
    number, shapes = 0, ShapeWatch(turn.gate.turn)
    async for step in turn:
        number += 1
        shapes.moved(step.row)
        snapshot = turn.snapshot()
        after_a_move(counters, step, snapshot, world, number)
        counters = snapshot["counters"]
    shapes.ended()
    assert turn.result is not None
    after_the_turn(world, turn.result, turn.steps)
    await next_turn(world)


async def next_turn(world: World) -> None:
    """The session continues: a plain turn completes unless a limit forbids it, and every request of it is
    valid."""
    world.left, world.after, starved = [], "all is well", world.case.budget is not None
    world.case = Case(script=[])
    result = await world.agent.arun("and now?")
    check_requests(world)
    check_pairs(world.session.rows)
    assert_released(world.agent)
    limited = (
        result.failure_class == "stale_breaker" or result.turn_exit_reason == "attempt_cap_reached" or starved
    )
    if world.agent.settings.max_iterations and not limited:
        assert result.completed
        assert result.final_response == "all is well"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One for all turns of a test, so that it is opened once."""
    return store_for(str(tmp_path))


UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
FAST = settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=UNHURRIED)
LAST_OF_A_CHAIN = Case(["blank"] * 3, {"empty": {"retries": 0}}, fallbacks=[None], repeated=True, budget=5)
ACKS = {"max_iterations": 2, "continuation": {"acks_enabled": True}}


@pytest.mark.behaviour("FSM-08")
@FAST
@example(case=Case(script=[], moments=[Moment("thinking", 0)]))
@example(case=LAST_OF_A_CHAIN)
@example(case=Case(script=["text"] * 3, history=12, window=2_000, budget=5))
@example(case=Case(script=["announced", "echo"], settings=ACKS))
@example(case=Case(script=["surrogate"], settings={"max_iterations": 0}))
@example(case=Case(script=["overflow"], settings={"max_iterations": 12}, fallbacks=[20_000]))
@given(case=CASES)
def test_random_turns(case: Case, tmp_path: Path, store: Store) -> None:
    asyncio.run(play(case, tmp_path))


@pytest.mark.slow
@settings(FAST, max_examples=sample.most(20_000), print_blob=True)
@seed(random.getrandbits(64) if "EXPLORE" in os.environ else sample.seed("very many random turns"))
@given(case=CASES)
def test_very_many_random_turns(case: Case, tmp_path: Path, store: Store) -> None:
    asyncio.run(play(case, tmp_path))
