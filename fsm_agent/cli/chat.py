"""``fsm-agent chat``: turn after turn in one session."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from rich.text import Text

from fsm_agent.agent import Agent, Content
from fsm_agent.cli.approval import attend
from fsm_agent.cli.given import CliOptions, agent_of
from fsm_agent.cli.live import ProgressView
from fsm_agent.cli.prompt import Reader, piped, typed
from fsm_agent.cli.run import played
from fsm_agent.cli.screen import clean, console_of, preview, seconds
from fsm_agent.cli.sessions import store_of
from fsm_agent.conversation.parts import FilePart, ImagePart, Part, named
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import ConfigError, SessionBusy, StoreError
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import TurnInfo
from fsm_agent.sessions.turn import Turn

HELP = """\
Write a message and press Enter. Alt-Enter, or a backslash at the end of the line, begins a new line.
Ctrl-C interrupts a running turn and keeps its text so far, twice leaves. Ctrl-D leaves.
/path   the states that the last turn went through
/resume   go on with a turn that was left unfinished
/undo [N]   take back the last turn, or the last N, and put the files of this folder back as they were before
/undo [N] words   the same, but leave the files as they are
/image FILE, /file FILE   an image, a PDF or a text that goes with the next message
/title [WORDS]   what the session is called, or is to be called
/help   this text
/exit   leave"""
REMINDED = 86_400.0
"""Seconds for which somebody who begins to talk is told of a turn that was left unfinished."""
ATTACHES = {"image": ImagePart, "file": FilePart}
_COMMAND = re.compile(r"/([a-z]+)")
_WITH_WORDS = re.compile(r"/(undo|title|image|file)[ \t]+(\S[^\n]*)")


def chat(given: CliOptions) -> int:
    """Talk until the input ends. Returns 0; a message that cannot be used is refused and the talk goes on."""
    live = ProgressView(console_of(sys.stdout))
    attend(live, given.yes)
    agent, choice = agent_of(replace(given, source="chat"), live)
    live.begin(f"{choice.profile.name}:{choice.model}", choice.why)
    live.write(Text("  /help shows what can be done, Ctrl-D leaves", "dim"))
    if given.session is not None:
        _greet(agent, live)
    else:
        _remind(agent, live, store_of(given.home))
    asyncio.run(_talk(agent, live, typed(agent.home) if sys.stdin.isatty() else piped(live)))
    return 0


def _remind(agent: Agent, live: ProgressView, store: Store) -> None:
    """Of the newest turn, when its process ended in the middle of it not long ago."""
    newest = next(iter(agent.journal.recent(1)), None)
    if (
        newest is None
        or newest.ended is not None
        or store.now() - newest.moved > REMINDED
        or store.owners.alive(newest.owner)
    ):
        return
    live.write(Text(f"  a turn was left unfinished: “{preview(newest.asked, 60)}”", "yellow"))
    live.write(Text(f"  fsm-agent sessions resume {clean(newest.id)}", "yellow"))


def _greet(agent: Agent, live: ProgressView) -> None:
    """Which session goes on, and whether its last turn was left in the middle."""
    live.write(
        Text.assemble("  ", (preview(agent.title, 80), "bold"), (f"  {clean(agent.session_id)}", "dim"))
    )
    if (last := _unfinished(agent)) is not None:
        words = (
            f"  its last turn was left unfinished in {last.state}, after {last.seq} moves:"
            f" “{preview(last.asked, 60)}”"
        )
        live.write(
            Text(words, "yellow"), Text("  /resume goes on with it; another message gives it up", "yellow")
        )


def _unfinished(agent: Agent) -> TurnInfo | None:
    return next((turn for turn in agent.journal.recent(1, agent.session_id) if turn.ended is None), None)


async def _talk(agent: Agent, live: ProgressView, read: Reader) -> None:
    last: TurnResult | None = None
    attached: list[Part] = []
    try:
        while (text := await read()) is not None:
            found = _COMMAND.fullmatch(text.strip()) or _WITH_WORDS.fullmatch(text.strip())
            if found is not None:
                command, words = (*found.groups(), "")[:2]
                if command in ("exit", "quit"):
                    break
                if command in ATTACHES and words:
                    _attach(ATTACHES[command](words), attached, live)
                    continue
                last = await _obey(command, words, agent, live, last)
            elif text.strip():
                said: Content = [text, *attached] if attached else text
                attached = []
                last = await _answer(agent, partial(agent.start, said), live) or last
        if last is not None:
            live.write(Text(f"  go on later: fsm-agent chat --session {clean(agent.session_id)}", "dim"))
    finally:
        await agent.aclose()


def _attach(given: ImagePart | FilePart, attached: list[Part], live: ProgressView) -> None:
    """Read it now, so that what is wrong with it is said at once."""
    try:
        attached.append(part := given.part())
        live.write(Text(f"  {clean(named(part))} goes with the next message", "dim"))
    except ConfigError as error:
        live.write(Text(clean(str(error)), "red"))


async def _answer(agent: Agent, begin: Callable[[], Turn], live: ProgressView) -> TurnResult | None:
    try:
        turn = begin()
        return await played(agent, turn, live)
    except (ConfigError, SessionBusy) as error:
        live.write(Text(clean(str(error)), "red"))
        return None


async def _obey(
    command: str, words: str, agent: Agent, live: ProgressView, last: TurnResult | None
) -> TurnResult | None:
    """Do what was asked; the last result, for ``/path``."""
    if command == "resume":
        return await _answer(agent, partial(agent.resume, agent.session_id), live) or last
    try:
        live.write(Text(await _reply(command, words, agent, last)))
    except (ConfigError, SessionBusy, StoreError) as error:
        live.write(Text(clean(str(error)), "red"))
    return last


async def _reply(command: str, words: str, agent: Agent, last: TurnResult | None) -> str:
    match command:
        case "help":
            return HELP
        case "path":
            return _path(last) if last else "There was no turn yet."
        case "image" | "file":
            return f"/{command} FILE adds it to the next message."
        case "title":
            title = agent.rename(words) if words else agent.title
            return (
                f"The session is called “{clean(title)}”."
                if title
                else "The session gets its title with its first turn."
            )
        case "undo":
            asked = re.fullmatch(r"(\d*)\s*(words)?", words)
            if asked is None:
                raise ConfigError("so many turns cannot be undone", words, "a number, and perhaps: words")
            done = await agent.aundo(int(asked[1] or 1), files=not asked[2])
            files = "" if asked[2] else f" {done.files or 'There was no checkpoint of files to put back.'}"
            return (
                f"Taken back, from “{preview(done.asked, 60)}” on; the transcript has {done.rows} messages"
                f" now.{files}"
            )
    return f"There is no command /{command}; /help shows what can be done."


def _path(result: TurnResult) -> str:
    """One line for each state that the turn was in."""
    lines = [
        f"{number:3}  {visit.state:<14} {visit.event or result.turn_exit_reason.value:<22}"
        f" {seconds(visit.seconds):>9}"
        for number, visit in enumerate(result.states, 1)
    ]
    return "\n".join(lines)
