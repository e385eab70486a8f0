"""Playing a script against a real turn over HTTP, with the assertions that every scenario shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fsm_agent import Agent, TurnResult, tool
from fsm_agent.agent import Turn
from fsm_agent.conversation.history import violations
from fsm_agent.fsm.runner import Step
from fsm_agent.sessions.store import store_for
from fsm_agent.testing import FakeClock, ScriptedServer
from fsm_agent.testing.wires import chat_rows
from fsm_agent_states.table import TURN
from tests.helpers.turn_pairs import why_not

MakeAgent = Callable[..., Agent]
"""What the fixtures ``agent`` and ``named`` are."""
SHOWN = ("completed", "failed", "partial", "interrupted")


@tool(concurrency="parallel", effect="pure")
def echo(text: str = "x") -> str:
    """Give a text back."""
    return text


@tool(effect="unsafe")
def put(key: str, value: str = "") -> str:
    """Store a value."""
    return f"stored {key}"


@tool(effect="pure")
def fail(why: str = "") -> str:
    """Always fails."""
    raise RuntimeError(f"it never works {why}")


@tool
def todo(items: list[str] | None = None) -> str:
    """Read or write the list of things to do."""
    return f"{len(items or [])} items"


TOOLS = (echo, put, fail, todo)
PARAGRAPH = "a paragraph of an earlier conversation, with facts in it. " * 12


def talk(pairs: int, said: str = PARAGRAPH) -> list[dict[str, Any]]:
    """An earlier conversation: messages of the user, each with an answer."""
    return [{"role": role, "content": f"{n} {said}"} for n in range(pairs) for role in ("user", "assistant")]


class Refreshable:
    """A key that can be renewed, or that looks so and is refused; ``refreshed`` counts."""

    def __init__(self, works: bool = True) -> None:
        self.key, self.refreshed, self.works = "old", 0, works

    def get(self) -> str:
        return self.key

    def refresh(self) -> bool:
        self.refreshed += 1
        self.key = f"new-{self.refreshed}"
        return self.works


@dataclass
class Heard:
    """Every callback, in order: (channel, values)."""

    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def functions(self, **own: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
        channels = (
            "tool_start", "tool_complete", "thinking", "reasoning", "stream_delta", "tool_gen", "interim_assistant",
            "step", "status", "transition", "event",
        )  # fmt: skip
        return {channel: self._listener(channel) for channel in channels} | own

    def of(self, channel: str) -> list[Any]:
        """The values of one channel; single values unpacked."""
        return [values[0] if len(values) == 1 else values for name, values in self.calls if name == channel]

    def _listener(self, channel: str) -> Callable[..., None]:
        def listen(*values: Any) -> None:
            self.calls.append((channel, values))

        return listen


def reads(words: str, action: Callable[[], object]) -> Callable[[str], None]:
    """A listener for ``speech_delta``: acts as soon as just these words were shown."""
    shown: list[str] = []

    def listen(delta: str) -> None:
        shown.append(delta)
        if "".join(shown) == words:
            action()

    return listen


class Interrupt:
    """Interrupts the turn of an agent when it is called: by a tool, a callback or a hook of the server, which
    know that the turn is where it should be interrupted. ``aim`` goes to ``play`` as ``before``."""

    def __init__(self, message: str | None = None) -> None:
        self._message = message
        self._agent: Agent | None = None

    def aim(self, agent: Agent) -> None:
        self._agent = agent

    def __call__(self) -> None:
        assert self._agent is not None, "call aim first"
        self._agent.interrupt(self._message)


async def break_off(agent: Agent, turn: Turn, requests: int) -> None:
    """Play ``requests`` requests of a turn, and leave it as after a crash: without an owner."""
    for _ in range(requests):
        await turn.step_into()
    store_for(str(agent.home)).let_go(turn.id)


class _Shut(Exception):
    """What a turn meets at the door."""


class _Door:
    async def passing(self) -> None:
        raise _Shut


def begin(turn: Turn) -> None:
    """Write a turn into its store, and leave it before its first request."""
    turn.gate.attach(_Door())
    with suppress(_Shut):
        asyncio.run(turn.step_into())


@dataclass
class Played:
    """One turn that was played to its end."""

    result: TurnResult
    server: ScriptedServer
    agent: Agent
    clock: FakeClock
    heard: Heard
    steps: list[Step]

    @property
    def roles(self) -> str:
        return " ".join(row["role"][0] for row in self.result.messages)

    @property
    def exit(self) -> str:
        return self.result.turn_exit_reason.value

    @property
    def waits(self) -> list[float]:
        return self.clock.sleeps

    @property
    def outcome(self) -> str:
        return next(name for name in SHOWN if self.result[name])

    @property
    def summary(self) -> str:
        """Requests, exit, outcome, class of the failure and the answer, as far as there are any:
        ``3 api_retries_exhausted failed server_error``, ``2 text_response completed: done``."""
        result = self.result
        words = [str(self.server.completions), self.exit, self.outcome, result.failure_class or ""]
        return " ".join(filter(None, words)) + (f": {result.final_response}" if result.completed else "")

    @property
    def results(self) -> list[str]:
        """What the calls gave, as it is stored."""
        return [row["content"] for row in self.result.messages if row["role"] == "tool"]

    @property
    def keys(self) -> list[str]:
        """The key of each request."""
        return [request.headers["authorization"].removeprefix("Bearer ") for request in self.server.requests]

    @property
    def states(self) -> list[str]:
        return [visit.state for visit in self.result.states]


@contextmanager
def table(script: Any, **options: Any) -> Iterator[tuple[Agent, ScriptedServer, FakeClock, Heard]]:
    """An agent in front of a scripted server, not yet asked anything."""
    clock, heard = options.pop("clock", None) or FakeClock(), Heard()
    own = options.pop("callbacks", {})
    with ScriptedServer(script) as server:
        options = {"model": "openai:gpt-x", "api_key": "test-key", "tools": TOOLS, "toolsets": [], **options}
        with Agent(base_url=server.url, clock=clock, callbacks=heard.functions(**own), **options) as agent:
            yield agent, server, clock, heard


def play(
    script: Any, message: str = "go", *, history: Sequence[Mapping[str, Any]] | None = None, **options: Any
) -> Played:
    """One turn through a real SDK and a real server, to its end."""
    before = options.pop("before", None)
    with table(script, **options) as (agent, server, clock, heard):
        turn = agent.start(message, conversation_history=history)
        if before is not None:
            before(agent)
        result = turn.run()
        played = Played(result, server, agent, clock, heard, turn.steps)
        check(played, turn)
        return played


def check(played: Played, turn: Turn) -> None:
    """What holds of every turn whatever happened in it."""
    result, server = played.result, played.server
    assert not server.overrun, "the turn asked more often than the script foresaw"
    assert sum(bool(result[name]) for name in SHOWN) == 1
    assert (set(result.keys()), result.attempts) == (set(TurnResult.model_fields), server.completions)
    assert result.total_tokens == server.served_usage.total
    for body in server.bodies:
        assert not violations(chat_rows(body))
    assert result.messages[-1]["role"] == "assistant"
    unpaired = [
        v
        for v in violations([r for r in result.messages if r.get("wire", True)])
        if v[:6] in ("INV-02", "INV-03")
    ]
    assert not unpaired
    assert_legal_path(turn.steps, result)
    assert_possible_pairs(turn.steps)
    stored = store_for(str(played.agent.home)).session(played.agent.session_id)
    assert [row.to_dict() for row in stored.rows] == result.messages
    assert_released(played.agent)


def assert_released(agent: Agent) -> None:
    """No turn holds the session of the agent any more."""
    found = "SELECT holder FROM sessions WHERE id = ? AND holder IS NOT NULL"
    assert agent.store.database.select(found, agent.session_id) == []


def assert_legal_path(steps: Sequence[Step], result: TurnResult) -> None:
    """Consecutive rows of the table from Prepare to Finalize, and the last one names the exit."""
    here = "Prepare"
    for step in steps:
        row = TURN.row(step.row)
        assert (row.source, row.event, row.dest) == (here, step.event, step.dest)
        here = step.dest
    assert here == "Finalize"
    assert steps[-1].exit == result.turn_exit_reason.value


def assert_possible_pairs(steps: Sequence[Step]) -> None:
    """No two rows follow each other that a named fact is said to forbid (``turn_pairs``)."""
    for before, after in pairwise(TURN.row(step.row) for step in steps):
        assert not (reason := why_not(before, after)), f"{before.id}, {after.id}: {reason}"
