"""Every number that a user may set, as the model of the settings declares it, with the ends of its range; and turns
that read them, against a server that answers in every way there is."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import random
import subprocess
import sys
import tempfile
import traceback
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

from fsm_agent import Agent, tool
from fsm_agent.conversation.compaction import BuiltInEngine
from fsm_agent.errors import ConfigError
from fsm_agent.fsm.verify import Bound, bounds, examine
from fsm_agent.hooks import Hooks
from fsm_agent.providers.scripted.replies import Reply, call, silence, slow, text, tools
from fsm_agent.sessions.store import Store
from fsm_agent.settings import Settings, merge
from fsm_agent.testing import FakeClock, FakeMemory, Received, ScriptedServer, repeat
from fsm_agent_states.table import TURN
from tests.crash.hostile_plan import ANSWERS, MODES
from tests.helpers.harness import echo, fail, talk
from tests.helpers.mcp_bench import SERVER
from tests.helpers.odd_turns import Records

MODEL = "openai:m1"
ENOUGH = 40
"""Requests of one turn and its children after which the server says something that ends them."""
PATIENCE = 120
"""Seconds of real time after which a turn does not end."""
LONG = 40_000_000
"""Seconds that pass while a tool or a server hangs: more than any setting can ask for."""


# The numbers


@dataclass(frozen=True)
class Number:
    """A setting that is a number, by the parts of its name, with its range."""

    path: tuple[str, ...]
    least: float
    most: float

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def ends(self) -> tuple[float, ...]:
        """The least and the most that it may be."""
        return self.least, self.most

    def given(self, value: float) -> dict[str, Any]:
        """The settings in which it alone has a value."""
        return reduce(lambda inner, part: {part: inner}, reversed(self.path), value)


@cache
def numbers() -> tuple[Number, ...]:
    """Each of them, as they are declared."""
    schema = Settings.model_json_schema()
    return tuple(_numbers((), schema, schema["$defs"]))


def _numbers(path: tuple[str, ...], schema: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Number]:
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    for one in schema.get("anyOf", ()):
        yield from _numbers(path, one, known)
    for name, one in schema.get("properties", {}).items():
        yield from _numbers((*path, name), one, known)
    for one in schema.get("patternProperties", {}).values():
        yield from _numbers((*path, MODEL), one, known)
    if schema.get("type") in ("number", "integer"):
        yield Number(path, *_range(schema))


def _range(schema: Mapping[str, Any]) -> tuple[float, float]:
    """The minimum and the maximum; infinite where the schema has no bound."""
    step = (lambda value, by: value + by) if schema["type"] == "integer" else math.nextafter
    far = 1 if schema["type"] == "integer" else math.inf
    low = schema.get("minimum", -math.inf)
    high = schema.get("maximum", math.inf)
    if "exclusiveMinimum" in schema:
        low = step(schema["exclusiveMinimum"], far)
    if "exclusiveMaximum" in schema:
        high = step(schema["exclusiveMaximum"], -far)
    return low, high


def tried_alone() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each number at its least, most, zero and one, where it may be that."""
    for number in numbers():
        for value in dict.fromkeys((*number.ends, 0, 1)):
            given = number.given(value)
            if accepted(given := _agreeing(number, value)):
                yield f"{number.name}={value!r}", given


def _agreeing(number: Number, value: float) -> dict[str, Any]:
    """The number with this value, and so have those of its group that must not be below it, or above."""
    given = number.given(value)
    try:
        Settings.of(merge(WORLD, given))
    except ConfigError as error:
        if "contradict" in str(error):
            group = [one for one in numbers() if one.path[:-1] == number.path[:-1]]
            return reduce(merge, (one.given(value) for one in group))
    return given


def accepted(given: Mapping[str, Any]) -> bool:
    """Can settings be these?"""
    try:
        Settings.of(merge(WORLD, given))
    except ConfigError:
        return False
    return True


def tried_together(seed: int) -> dict[str, Any]:
    """Some numbers, each at one of its extremes, that agree with each other."""
    pick, given = random.Random(seed), dict[str, Any]()
    for number in pick.sample(numbers(), pick.choice([2, 5, 20, 60, len(numbers())])):
        more = merge(given, number.given(pick.choice([*number.ends, 0, 1])))
        given = more if accepted(more) else given
    return given


# The world in which they are tried

WORLD: dict[str, Any] = {
    "prices": {f"openai:m{n}": {"input": 1, "output": 2} for n in (1, 2, 3)},
    "approval": {"policy": {"terminal": "allow", "write_file": "allow", "execute_code": "allow"}},
    "web": {"allow_private_hosts": ["127.0.0.1"]},
    "poll": {"control": 0.02},
    "store": {"durability": "normal"},
    "memory": {"review": "child"},
    "delegation": {"background": True},
    "prompt": {"budget_hint": 0.5, "context_hint": 0.5},
    "continuation": {"verify_enabled": True, "acks_enabled": True},
    "tool": {"interrupt_grace": 0.05},
}
PICTURE = b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
    b"\x00\x00\x00\rIDATx\x9cc\xf8\xcfP\x0f\x00\x03\x86\x01\x80Z4}k\x00\x00\x00\x00IEND\xaeB`\x82"
).decode()
TOOLSETS = ("core", "terminal", "web", "code", "memory", "skills", "todo", "sessions", "context", "clarify", "delegate")  # fmt: skip
QUICK = 1
"""Something hangs only if the clock is looked at again within this many seconds."""


class HungClock(FakeClock):
    """It passes everything by when something hangs."""

    def pass_by(self) -> None:
        self.advance(LONG)


def called(pick: random.Random, url: str) -> Reply:
    """One to three calls of tools, built-in and own."""
    choices = [
        call("echo", {"text": "x" * pick.choice([1, 900, 5_000])}),
        call("long_result"),
        call("fail"),
        call("fail"),
        call("hangs"),
        call("asks"),
        call("list_directory", {"path": "."}),
        call("read_file", {"path": "AGENTS.md"}),
        call("search_files", {"query": "brief"}),
        call("write_file", {"path": "new.txt", "content": "new"}),
        call("calculator", {"expression": "1/3"}),
        call("web_fetch", {"url": url}),
        call("memory", {"action": "add", "content": "a fact " * pick.choice([1, 20, 400])}),
        call("todo", {"items": [{"text": "continue"}]}),
        call("session_search", {"query": "row"}),
        call("clarify", {"question": "which?"}),
        call("delegate_task", {"tasks": [{"goal": "a task"}, {"goal": "another"}], "background": pick.random() < 0.3}),
        call("transfer_to_other", {"note": "yours"}),
        call("echo_tool", {"text": "repaired"}),
    ]  # fmt: skip
    if pick.random() < 0.05:
        choices = [call("terminal", {"command": "echo hi"}), call("execute_code", {"code": "print(1)"})]
    return tools(*pick.choices(choices, k=pick.choice([1, 1, 2, 3])))


class World:
    """One agent, its session and what its server answers."""

    def __init__(self, given: Mapping[str, Any], seed: int, server: ExtremeServer, folder: Path) -> None:
        self.seed, self.server, self.folder = seed, server, folder
        self.clock = HungClock()
        self.settings = Settings.of(merge(WORLD, given))
        self.hangs = self.settings.poll.control <= QUICK
        self.pick = random.Random(seed)
        self.sent = 0

    def answer(self, received: Received) -> Reply:
        self.sent += 1
        if self.sent > ENOUGH:
            return text("enough.")
        pick = random.Random(f"{self.seed} {self.sent}")
        draw = pick.random()
        if draw < 0.7:
            return called(pick, self.server.page)
        if draw < 0.75 and self.hangs:
            where = pick.choice(["connect", "headers", "a few words"])
            return silence(where, hook=self.clock.pass_by)
        if draw < 0.8:
            return slow("one two three", 0.01)
        kind = pick.choice([name for name in ANSWERS if name not in ("silent", "delegated", "elsewhere")])
        return ANSWERS[kind](pick, {})

    async def play(self, turns: int, bound: Bound | None) -> list[str]:
        """The first turns of a session; what is wrong with them."""
        faults: list[str] = []
        log, written = Records(), io.StringIO()
        logging.getLogger().addHandler(log)
        store = Store(self.folder / "home", "normal")
        try:
            with contextlib.redirect_stderr(written), contextlib.redirect_stdout(written):
                agent = self._agent(store)
                for message in ("go", [{"type": "text", "text": "and this?"}, picture()])[:turns]:
                    faults += await self._turn(agent, message, bound)
                await agent.aclose()
        except Exception as error:
            faults.append("".join(traceback.format_exception(error)))
        finally:
            logging.getLogger().removeHandler(log)
            store.close()
        return faults + [f"logged: {line}" for line in log.seen if "asyncio" not in line]

    async def _turn(self, agent: Agent, message: Any, bound: Bound | None) -> list[str]:
        turn = agent.start(message, conversation_history=talk(12, "word " * 60) if message == "go" else None)
        try:
            async with asyncio.timeout(PATIENCE):
                result = await turn.arun()
        except TimeoutError:
            return [f"it did not end in {PATIENCE} s; at {turn.gate.turn.state}"]
        faults = []
        for one in agent.journal.recent(1_000):
            said = agent.journal.result(one.id) or {}
            if said.get("turn_exit_reason") == "local_processing_error":
                faults.append(f"{one.id}: {said['error']}")
            limits = agent.journal.snapshot(one.id, 1)["limits"] if one.seq else {}
            if bound and limits and said.get("attempts", 0) > (most := bound.value(limits)):
                faults.append(f"{one.id}: {said['attempts']} requests, at most {most} were proved")
        return faults + [f"cleanup: {one}" for one in result.cleanup_errors]

    def _agent(self, store: Store) -> Agent:
        pick, clock = self.pick, self.clock

        @tool(effect="pure")
        async def hangs() -> str:
            """Hang."""
            if self.hangs:
                clock.pass_by()
                await asyncio.Event().wait()
            return "no"

        work = self.folder / "work"
        work.mkdir(parents=True)
        (work / "AGENTS.md").write_text("Be brief.\n" * pick.choice([1, 2_000]))
        if pick.random() < 0.05:  # there are checkpoints, which cost a quarter of a second
            subprocess.run(["git", "init", "-q", work], check=True)
        wires = MODES[:1] if self.settings.request.seed is not None else MODES  # the others take no seed
        entries = [
            {"model": f"openai:m{n}", "base_url": self.server.at(f"{self.seed}/{n}"), "api_key": ["k1", "k2"],
             "api_mode": pick.choice(wires), "context_window": pick.choice([None, 9_000, 16_000, 60_000, 600_000])}
            for n in (1, 2, 3)
        ]  # fmt: skip
        first, other, auxiliary = entries
        common: dict[str, Any] = {"clock": clock, "settings": self.settings, "workdir": work, "store": store}
        return Agent(
            **first, fallbacks=[other], auxiliary=auxiliary, tools=[echo, fail, hangs, long_result, asks],
            toolsets=TOOLSETS, home=self.folder / "home", memory=self._memory(), hooks=[Watching()],
            input_guardrails=[fine], output_guardrails=[fine], handoffs=[Agent(**first, name="other", **common)],
            context_engine=pick.choice([None, BuiltInEngine()]), callbacks={"approval": lambda _: True, "clarify": lambda *_: "yes"},
            mcp={"s": {"command": sys.executable, "args": ["-I", "-S", SERVER, "{}"]}} if pick.random() < 0.02 else None,
            output_type=pick.choice([str, None, int]), **common,
        )  # fmt: skip

    def _memory(self) -> FakeMemory:
        fault = self.pick.choice([{}, {}, {"hang": "recall"}, {"fail": "recall"}]) if self.hangs else {}
        return FakeMemory({"go": "a fact"}, keeps="keep this", clock=self.clock, **fault)


class Watching(Hooks):
    """Hooks that change nothing."""

    async def before_tool(self, *_: Any) -> None:
        await asyncio.sleep(0)


async def fine(*_: Any) -> None:
    """Let it pass."""


@tool(effect="pure", concurrency="parallel")
def long_result(lines: int = 5_000) -> str:
    """Many lines."""
    return "a long line of a tool's result\n" * lines


@tool(effect="pure", approval="ask")
async def asks() -> str:
    """Need approval."""
    return "done"


def picture() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}


@cache
def request_bound() -> Bound:
    """How many requests a turn is proved to send at most, as a formula of its limits."""
    proof = examine(TURN)
    return next(bound for bound in bounds(proof.without_caps, proof.with_caps) if bound.spends == "attempts")


class ExtremeServer:
    """A server that answers the turns of many worlds, each by the first part of its path."""

    def __init__(self) -> None:
        self._worlds: dict[str, World] = {}
        self._server = ScriptedServer(repeat(self._answer))
        self.at = self._server.at

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/page"

    def __enter__(self) -> ExtremeServer:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _answer(self, received: Received) -> Reply:
        return self._worlds[received.path.split("/")[1]].answer(received)

    def faults_of(
        self, given: Mapping[str, Any], seed: int, turns: int = 2, bound: Bound | None = None
    ) -> list[str]:
        """What is wrong with a session under these settings; with ``bound``, requests beyond it, too."""
        room = "/dev/shm" if Path("/dev/shm").is_dir() else None
        # With limits this short, a thread that was given up may still write a copy of a file there.
        with tempfile.TemporaryDirectory(dir=room, ignore_cleanup_errors=True) as folder:
            world = self._worlds[str(seed)] = World(given, seed, self, Path(folder))
            return asyncio.run(world.play(turns, bound))
