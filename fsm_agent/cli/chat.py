"""``fsm-agent chat``: turn after turn in one session."""

from __future__ import annotations

import asyncio
import re
import sys

from rich.text import Text

from fsm_agent.agent import Agent
from fsm_agent.cli.approval import asker
from fsm_agent.cli.given import Given, agent_of
from fsm_agent.cli.live import Live
from fsm_agent.cli.prompt import Reader, piped, typed
from fsm_agent.cli.run import played
from fsm_agent.cli.screen import clean, console_of, seconds
from fsm_agent.errors import ConfigError
from fsm_agent.result import TurnResult

HELP = """Write a message and press Enter. Alt-Enter, or a backslash at the end of the line, begins a new line.
Ctrl-C interrupts a running turn and keeps its text so far, twice leaves. Ctrl-D leaves.
/path   the states that the last turn went through
/help   this text
/exit   leave"""
_COMMAND = re.compile(r"/[a-z]+")


def chat(given: Given) -> int:
    """Talk until the input ends. Returns 0; a message that cannot be used is refused and the talk goes on."""
    live = Live(console_of(sys.stdout))
    live.approval = asker(live, given.yes)
    agent, choice = agent_of(given, live)
    live.begin(f"{choice.profile.name}:{choice.model}", choice.why)
    live.write(Text("  /help shows what can be done, Ctrl-D leaves", "dim"))
    asyncio.run(_talk(agent, live, typed(agent.home) if sys.stdin.isatty() else piped(live)))
    return 0


async def _talk(agent: Agent, live: Live, read: Reader) -> None:
    last: TurnResult | None = None
    try:
        while (text := await read()) is not None:
            if _COMMAND.fullmatch(text.strip()):
                if text.strip() in ("/exit", "/quit"):
                    return
                live.write(Text(_obey(text.strip(), last)))
            elif text.strip():
                last = await _answer(agent, text, live) or last
    finally:
        await agent.aclose()


async def _answer(agent: Agent, text: str, live: Live) -> TurnResult | None:
    try:
        turn = agent.start(text)
    except ConfigError as error:
        live.write(Text(clean(str(error)), "red"))
        return None
    return await played(agent, turn, live)


def _obey(command: str, last: TurnResult | None) -> str:
    if command == "/help":
        return HELP
    if command == "/path":
        return _path(last) if last else "There was no turn yet."
    return f"There is no command {command}; /help shows what can be done."


def _path(result: TurnResult) -> str:
    """One line for each state that the turn was in."""
    lines = [
        f"{number:3}  {visit.state:<14} {visit.event or result.turn_exit_reason.value:<22} {seconds(visit.seconds):>9}"
        for number, visit in enumerate(result.states, 1)
    ]
    return "\n".join(lines)
