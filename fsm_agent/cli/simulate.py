"""``fsm-agent simulate``: one real turn through the real SDK against a provider that fails on purpose; and
``fsm-agent examples``.

Only the provider and the clock are simulated: requests go over HTTP to a server on this machine, waits take
no time."""

from __future__ import annotations

import ast
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import fsm_agent
from fsm_agent.agent import Agent
from fsm_agent.cli.options import Json
from fsm_agent.cli.run import code_of
from fsm_agent.cli.screen import OUTCOMES, console_of, grid_of, preview, put, screen, seconds
from fsm_agent.conversation.result import TurnResult, words_of_model
from fsm_agent.errors import ConfigError
from fsm_agent.testing import (
    FakeClock,
    Received,
    Reply,
    ScriptedServer,
    blank,
    call,
    cut_tool_call,
    overflow,
    repeat,
    status,
    text,
    tools,
)
from fsm_agent.tools import tool

WINDOW = 200_000
FAULTS: Mapping[str, tuple[str, Callable[[], Reply]]] = {
    "rate_limit": ("429, retry after 7 s", lambda: status(429, headers={"retry-after": "7"})),
    "server_error": ("500", lambda: status(500)),
    "empty": ("an empty reply", blank),
    "truncated_call": ("a truncated tool call", lambda: cut_tool_call("lookup", '{"city": "Ber')),
    "overflow": ("400, the context is too long", lambda: overflow(WINDOW // 2, WINDOW)),
    "parallel_tools": (
        "three tool calls",
        lambda: tools(*(call("lookup", {"city": c}) for c in ("Bern", "Oslo", "Rome"))),
    ),
}
ANSWER = "It is sunny in Bern, Oslo and Rome."


@tool(concurrency="parallel", effect="pure")
def lookup(city: str) -> str:
    """Weather for a city."""
    return f"{city}: sunny, 21 degrees"


@dataclass(frozen=True, slots=True)
class SimulatedMove:
    """One move of the path. ``answers``: the provider's, while the state ran; ``waited`` in simulated
    seconds."""

    seq: int
    source: str
    answers: list[str]
    waited: float
    event: str
    guards: list[tuple[str, bool]]
    dest: str


class Provider:
    """Answers with one fault after another, then with text. A request without tools gets a summary."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.answers: list[str] = []
        self._left = list(faults)

    def __call__(self, request: Received) -> Reply:
        if "tools" not in request.body:
            return self._answer(
                "a summary", text("The user asked for the weather in many cities; all were sunny.")
            )
        if not self._left:
            return self._answer("text", text(ANSWER))
        what, make = FAULTS[self._left.pop(0)]
        return self._answer(what, make())

    def _answer(self, what: str, reply: Reply) -> Reply:
        self.answers.append(what)
        return reply


def simulate(
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="NAME", help="A fault that the turn meets; default: all."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random part of waits.")] = 0,
    as_json: Json = False,
) -> int:
    """Run a turn against a provider that fails.

    Prints the path of the turn.

    The provider is scripted and answers over real HTTP; waits are simulated.
    """
    for name in faults or ():
        if name not in FAULTS:
            raise ConfigError("unknown fault", name, ", ".join(FAULTS))
    chosen = list(faults or FAULTS)
    result, moves = asyncio.run(_play(chosen, seed))
    if as_json:
        path = [asdict(move) for move in moves]
        print(
            json.dumps(
                {"faults": chosen, "seed": seed, "path": path, "result": result.model_dump(mode="json")}
            )
        )
    else:
        _show(chosen, result, moves)
    return code_of(result)


async def _play(faults: Sequence[str], seed: int) -> tuple[TurnResult, list[SimulatedMove]]:
    provider, clock, moves = Provider(faults), FakeClock(), list[SimulatedMove]()
    with tempfile.TemporaryDirectory() as home, ScriptedServer(repeat(provider)) as server:
        agent = Agent(
            "openai:scripted",
            base_url=server.url,
            api_key="simulated",
            context_window=WINDOW,
            tools=[lookup],
            toolsets=[],
            settings={"backoff": {"seed": seed}},
            home=home,
            clock=clock,
        )
        history = _long_talk() if "overflow" in faults else None
        turn = agent.start("What is the weather in Bern, Oslo and Rome?", conversation_history=history)
        answered = slept = 0
        async for step in turn:
            answers, waits = provider.answers[answered:], clock.sleeps[slept:]
            answered, slept = len(provider.answers), len(clock.sleeps)
            moves.append(
                SimulatedMove(step.seq, step.source, answers, sum(waits), step.event, step.guards, step.dest)
            )
        await agent.aclose()
    assert turn.result is not None, "a turn that was iterated to its end has a result"
    return turn.result, moves


def _long_talk() -> list[dict[str, Any]]:
    """Return a conversation that is long enough to be compacted."""
    rows = [
        (
            {"role": "user", "content": f"And in city {n}?"},
            {"role": "assistant", "content": f"Sunny in {n}. " * 200},
        )
        for n in range(30)
    ]
    return [row for pair in rows for row in pair]


def _show(faults: Sequence[str], result: TurnResult, moves: Sequence[SimulatedMove]) -> None:
    """Print the outcome, then the path."""
    outcome = next(name for name in OUTCOMES if result[name])
    waits = ", ".join(seconds(move.waited) for move in moves if move.waited) or "none"
    words = words_of_model(result)
    names = ("#", "state", "the provider sent", "waited", "event", "guards, in order", "next state")
    grid = grid_of(names, right=("#", "waited"), breaks=32)
    for move in moves:
        guards = Text("\n").join(_guard(label, value) for label, value in move.guards)
        waited = seconds(move.waited) if move.waited else ""
        grid.add_row(
            str(move.seq), move.source, "\n".join(move.answers), waited, move.event, guards, move.dest
        )
    put(
        screen(),
        Text.assemble((outcome, "bold"), f" · {result.turn_exit_reason.value} · {result.attempts} requests"),
        Text(f"faults: {', '.join(faults)}"),
        Text(f"waits (simulated): {waits}"),
        Text(f"answer: {preview(words, 200)}\n" if words else f"error: {result.error}\n"),
        grid,
    )


def _guard(label: str, value: bool) -> Text:
    return Text.assemble(label, ": ", ("yes", "green") if value else ("no", "red"))


LEFT_OUT = ("__pycache__",)


def copy_examples(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A new one.")] = "examples",
) -> int:
    """Write the example programs into a folder."""
    source, to = _source(), Path(folder)
    if to.exists():
        raise ConfigError("this is there already", folder, "the name of a new folder")
    try:
        shutil.copytree(source, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    except OSError as error:
        raise ConfigError(f"the examples cannot be written ({error.strerror or error})", folder) from None
    console = console_of(sys.stdout)
    for program in sorted(to.glob("*.py")):
        about = ast.get_docstring(ast.parse(program.read_text("utf-8"))) or ""
        first, _, _ = about.partition("\n\n")
        console.print(Text.assemble((str(program), "bold"), "  ", " ".join(first.split())))
    return 0


def _source() -> Path:
    """Return the folder of the examples: inside a built package, beside it in a source folder."""
    package = Path(fsm_agent.__file__).parent
    return next(
        (one for one in (package / "examples", package.parent / "examples") if one.is_dir()),
        package / "examples",
    )
