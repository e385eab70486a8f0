"""``fsm-agent chat``: turn after turn in one session."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import get_args

from rich.text import Text

from fsm_agent.agent import Agent, Content
from fsm_agent.cli.approval import attend
from fsm_agent.cli.commands import compacted, obey
from fsm_agent.cli.given import CliOptions, agent_of
from fsm_agent.cli.live import ProgressView
from fsm_agent.cli.meanwhile import Meanwhile
from fsm_agent.cli.pending_line import waiting_line
from fsm_agent.cli.prompt import SIGN, Reader, piped, typed
from fsm_agent.cli.run import ctrl_c, played
from fsm_agent.cli.screen import clean, console_of, preview, seconds
from fsm_agent.cli.sessions import store_of
from fsm_agent.conversation.parts import FilePart, ImagePart, Part, named
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import ConfigError, OwnershipLost, SessionBusy, StoreError, TurnSuspended
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import TurnInfo
from fsm_agent.sessions.turn import Turn
from fsm_agent.settings.model import SecondMessage
from fsm_agent.support.threads import in_a_loop

HELP = """\
Write a message and press Enter. Alt-Enter, or a backslash at the end of the line, begins a new line.
Ctrl-C interrupts a running turn and keeps its text so far, twice leaves. Ctrl-D leaves.
What you write while a turn runs is answered after it (or as interrupt.second_message says).
/queue, /steer, /interrupt TEXT   say it after the turn, to the running turn, or instead of it
/path   the states that the last turn went through
/resume   go on with a turn that was left unfinished
/undo [N]   take back the last turn, or the last N, and put the files of this folder back as they were before
/undo [N] words   the same, but leave the files as they are
/image FILE, /file FILE   an image, a PDF or a text that goes with the next message
/compact [TOPIC]   make the conversation shorter; its summary dwells on the topic
/title [WORDS]   what the session is called, or is to be called
/help   this text
/exit   leave"""
REMINDED = 86_400.0
"""Seconds for which somebody who begins to talk is told of a turn that was left unfinished."""
ATTACHES = {"image": ImagePart, "file": FilePart}
_COMMAND = re.compile(r"/([a-z]+)")
_WITH_WORDS = re.compile(r"/(undo|title|image|file|compact|queue|steer|interrupt)[ \t]+(\S.*)", re.DOTALL)
MEANWHILE = {
    "queue": "queued: answered after this turn",
    "steer": "told to the model with its next tool result",
    "interrupt": "the turn is interrupted for it",
}
"""What becomes of a message that comes while a turn runs, in words."""


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
    read = typed(agent.home) if sys.stdin.isatty() else piped(live)
    meanwhile = None
    if sys.stdin.isatty() and live.console.is_terminal and sys.platform != "win32":
        meanwhile = Meanwhile(live.typed)
        live.aside = meanwhile.aside
    in_a_loop(Talk(agent, live, read, meanwhile).go_on())
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


class Talk:
    """A talk between a person and an agent. ``meanwhile`` hears what is typed while a turn runs, if there is
    a terminal; ``waiting`` are messages that came then, oldest first."""

    def __init__(self, agent: Agent, live: ProgressView, read: Reader, meanwhile: Meanwhile | None) -> None:
        self._agent, self._live, self._read, self._meanwhile = agent, live, read, meanwhile
        self._last: TurnResult | None = None
        self._waiting: deque[str] = deque()
        self._attached: list[Part] = []  # goes with the next message
        self._full = False  # the last compaction gained nothing

    async def go_on(self) -> None:
        """Answer message after message, until the input ends."""
        try:
            while (text := await self._next()) is not None:
                found = _COMMAND.fullmatch(text.strip()) or _WITH_WORDS.fullmatch(text.strip())
                command, words = (*found.groups(), "")[:2] if found else ("", "")
                if command in ("exit", "quit"):
                    break
                if command in get_args(SecondMessage) and words:
                    text, command = words, ""
                if command in ATTACHES and words:
                    self._attach(ATTACHES[command](words))
                elif command:
                    await self._obey(command, words)
                elif text.strip():
                    await self._make_room()
                    said: Content = [text, *self._attached] if self._attached else text
                    self._attached = []
                    await self._answer(partial(self._agent.start, said))
            if self._last is not None:
                session = clean(self._agent.session_id)
                self._live.write(Text(f"  go on later: fsm-agent chat --session {session}", "dim"))
        finally:
            await self._agent.aclose()

    async def _next(self) -> str | None:
        if self._waiting:
            text = self._waiting.popleft()
            self._live.write(Text(f"\n{SIGN}{clean(text)}"))
            return text
        return await self._read("" if self._meanwhile is None else self._meanwhile.draft())

    def _attach(self, given: ImagePart | FilePart) -> None:
        """Read it now, so that what is wrong with it is said at once."""
        try:
            self._attached.append(part := given.part())
            self._live.write(Text(f"  {clean(named(part))} goes with the next message", "dim"))
        except ConfigError as error:
            self._live.write(Text(clean(str(error)), "red"))

    async def _answer(self, begin: Callable[[], Turn]) -> None:
        listening = nullcontext() if self._meanwhile is None else self._meanwhile.listening(self._hear)
        try:
            turn = begin()
            with listening:
                self._last = await played(self._agent, turn, self._live)
            signals = self._agent.signals
            self._waiting.extendleft(reversed((*self._last.pending_steer, *signals.take_steer())))
            signals.clear()  # what came too late for the turn is no word to the next one
        except TurnSuspended as waits:
            line = waiting_line(waits.pending, waits.turn_id)
            self._live.write(Text(f"  {line}, or say /resume", "yellow"))
        except (ConfigError, OwnershipLost, SessionBusy) as error:
            self._live.write(Text(clean(str(error)), "red"))

    def _hear(self, text: str) -> None:
        """A message has come while a turn runs."""
        how: str = self._agent.settings.interrupt.second_message or "queue"
        found = _WITH_WORDS.fullmatch(text.strip())
        if found is not None and found[1] in get_args(SecondMessage):
            how, text = found.groups()
        elif _COMMAND.fullmatch(text.strip()) or found is not None:
            how = "queue"
        if how == "steer":
            self._agent.steer(text)
        elif how == "interrupt":
            self._waiting.appendleft(text)
            self._agent.interrupt(text)
        else:
            self._waiting.append(text)
        self._live.write(Text(f"    {SIGN}{preview(text, 120)}  ({MEANWHILE[how]})", "yellow"))

    async def _obey(self, command: str, words: str) -> None:
        if command == "resume":
            await self._answer(partial(self._agent.resume, self._agent.session_id))
            return
        try:
            self._live.write(Text(await self._reply(command, words)))
        except (ConfigError, SessionBusy, StoreError) as error:
            self._live.write(Text(clean(str(error)), "red"))

    async def _reply(self, command: str, words: str) -> str:
        match command:
            case "help":
                return HELP
            case "path":
                return _path(self._last) if self._last else "There was no turn yet."
            case "image" | "file":
                return f"/{command} FILE adds it to the next message."
            case "compact":
                return compacted(await self._compact(words))
            case "title" | "undo":
                return await obey(self._agent, command, words)
        return f"There is no command /{command}; /help shows what can be done."

    async def _make_room(self) -> None:
        """Compact before a message that would come into a window that is almost full."""
        used, compression = self._agent.context_used, self._agent.settings.compression
        if not compression.enabled or used < compression.host_threshold or self._full:
            return
        self._live.status(f"the window is {used:.0%} full: compacting before your message is sent")
        try:
            await self._compact("")
        except (ConfigError, SessionBusy):
            pass  # an unfinished turn: the message gives it up
        finally:
            self._live.stop()

    async def _compact(self, focus: str) -> bool:
        with ctrl_c(self._agent.interrupt):
            self._full = await self._agent.acompact(focus) is None
        return not self._full


def _path(result: TurnResult) -> str:
    """One line for each state that the turn was in."""
    lines = [
        f"{number:3}  {visit.state:<14} {visit.event or result.turn_exit_reason.value:<22}"
        f" {seconds(visit.seconds):>9}"
        for number, visit in enumerate(result.states, 1)
    ]
    return "\n".join(lines)
