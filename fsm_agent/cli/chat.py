"""``fsm-agent chat``: messages and commands, turn after turn; some commands work in editors, too."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import RenderableType
from rich.text import Text

from fsm_agent.agent import Agent, Turn
from fsm_agent.cli.agent_options import agent_of
from fsm_agent.cli.input import CHAT, SIGN, Reader, TypeAhead, help_text, piped_reader, terminal_reader
from fsm_agent.cli.options import CliOptions, Remote, with_agent
from fsm_agent.cli.questions import attend
from fsm_agent.cli.run import ctrl_c, figures, run_live, waiting_line
from fsm_agent.cli.screen import WholeTable, clean, console_of, cost, count, preview, seconds, tokens
from fsm_agent.cli.sessions import recent, store_of
from fsm_agent.cli.view import ProgressView
from fsm_agent.conversation.parts import FilePart, ImagePart, Part, name_part, text_only
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import ConfigError, OwnershipLost, SessionBusy, StoreError, TurnSuspended, near
from fsm_agent.options import Content
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.journal.read import TurnInfo
from fsm_agent.sessions.store.reports import session_record, session_usage
from fsm_agent.settings import SecondMessage
from fsm_agent.support.redaction import mask
from fsm_agent.support.threads import in_a_loop

if TYPE_CHECKING:
    from fsm_agent.toolsets.mcp.offer import ServerPrompt

COMMANDS: Mapping[str, tuple[str, str]] = {
    "compact": ("Make the conversation shorter", "what its summary should dwell on"),
    "title": ("Say what the session is called, or give it a title", "the title"),
    "undo": (
        "Take back the last turn, and put the files of this folder back as they were before",
        "how many turns, and perhaps: words, to leave the files as they are",
    ),
}
"""What each command does, and its arguments."""


async def obey(agent: Agent, command: str, words: str) -> str:
    """Run one of ``COMMANDS`` and return an answer in words. Raises ``ConfigError``, ``SessionBusy`` and
    ``StoreError``."""
    match command:
        case "compact":
            return compaction_words(await agent.acompact(words) is not None)
        case "title":
            title = agent.rename(words) if words else agent.title
            return (
                f"The session is called “{clean(title)}”."
                if title
                else "The session gets its title with its first turn."
            )
    asked = re.fullmatch(r"(\d*)\s*(words)?", words)
    if asked is None:
        raise ConfigError("this number of turns cannot be undone", words, "a number, and perhaps: words")
    done = await agent.aundo(int(asked[1] or 1), files=not asked[2])
    kept = "" if asked[2] else f" {done.files or 'There was no checkpoint of files to put back.'}"
    return (
        f"Taken back, from “{preview(done.asked, 60)}” on; the transcript has {done.rows} messages now.{kept}"
    )


def compaction_words(gained: bool) -> str:
    """Describe the outcome of a compaction."""
    return "Done." if gained else "The conversation stays as it is."


SHOWN = 2_000
"""Maximum characters of each message of the last exchange that a resumed chat shows."""
REMINDED = 86_400.0
"""Seconds for which a new chat reminds the user of an unfinished turn."""
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_COMMAND = re.compile(r"/([a-z]+)(?:[ \t]+(\S.*))?", re.DOTALL)
_WORDLESS = ("help", "path", "new", "cost", "tools", "resume", "exit", "quit")
_MENTIONED = re.compile(r"(?<!\S)@(?:\"([^\"\n]+)\"|(\S+))")
_RESOURCE = re.compile(r"(?<!\S)@([A-Za-z0-9_-]+):(\S+)")
_PROMPT = re.compile(r"/([A-Za-z0-9_-]+:[^\s/]+)(?:\s+(\S.*))?", re.DOTALL)
MEANWHILE = {
    "queue": "queued: answered after this turn",
    "steer": "told to the model with its next tool result",
    "interrupt": "the turn is interrupted for it",
}
"""What happens to a message that arrives during a turn, in words."""


def command_in(text: str) -> tuple[str, str]:
    """Return (command, words after it) for a line that is a command; ("", "") for a message."""
    found = _COMMAND.fullmatch(text.strip())
    if found is None or (found[2] and (found[1] not in CHAT or found[1] in _WORDLESS)):
        return "", ""
    return found[1], found[2] or ""


def mentions_in(text: str) -> list[str]:
    """Return the files that a message names as ``@path`` or ``@"a path"``, each once."""
    named = (one or other for one, other in _MENTIONED.findall(text))
    return [path for path in dict.fromkeys(named) if Path(path).is_file()]


class ChatSession:
    """A chat, turn after turn. ``meanwhile`` reads what is typed during a turn, if there is a terminal. With
    ``mentions`` a ``@path`` in a message attaches that file: only a person may name one."""

    def __init__(
        self, given: CliOptions, live: ProgressView, meanwhile: TypeAhead | None, *, mentions: bool
    ) -> None:
        self._given, self._live, self._meanwhile, self._mentions = given, live, meanwhile, mentions
        self.agent, self._choice = agent_of(given, live)
        self._last: TurnResult | None = None
        self._waiting: deque[str] = deque()  # messages that arrived during a turn, oldest first
        self._attached: list[Part] = []  # goes with the next message
        self._full = False  # the last compaction freed nothing
        self._prompts: dict[str, ServerPrompt] = {}
        self._learning: asyncio.Task[None] | None = None

    # Prompts and resources of MCP servers

    def _learn_prompts(self) -> None:
        """List the prompts of the servers in the background: starting a server may take seconds."""
        if self._learning is not None:
            self._learning.cancel()
        self._learning = asyncio.create_task(self._list_prompts())

    async def _list_prompts(self) -> None:
        servers = self.agent.servers
        found = [] if servers is None else await servers.prompts()
        self._prompts = {one.command: one for one in found if _PROMPT.fullmatch(f"/{one.command}")}

    def prompts(self) -> Mapping[str, tuple[str, str]]:
        """Return the prompts of MCP servers as commands: their arguments, and what they do."""
        return {
            clean(name): (clean(one.words), preview(one.description, 200))
            for name, one in self._prompts.items()
        }

    async def _say_prompt(self, command: str, words: str) -> None:
        """Fill in a prompt of a server and send it as the user's message."""
        try:
            if command not in self._prompts:
                await self._list_prompts()
            if (prompt := self._prompts.get(command)) is None or (servers := self.agent.servers) is None:
                raise ConfigError("no such prompt", f"/{command}", near(command, self._prompts))
            found = await servers.prompt(prompt, words)
        except ConfigError as error:
            self._complain(error)
            return
        shown = found if isinstance(found, str) else text_only(found)
        self._live.write(Text(f"  {preview(shown, 400)}", "dim"))
        await self._send(found)

    async def _attach_resources(self, text: str) -> None:
        servers = self.agent.servers
        names = [] if servers is None else [one.name for one in servers.servers]
        for name, uri in dict.fromkeys(_RESOURCE.findall(text)):
            if servers is not None and name in names:
                found = await servers.resource(name, uri)
                self._attached += [{"type": "text", "text": found}] if isinstance(found, str) else found
                self._live.write(Text(f"  {clean(uri)} of {name} goes with the message", "dim"))

    # Before and after messages

    @property
    def model(self) -> str:
        """Return the current model, as ``/model`` takes it."""
        return f"{self._choice.profile.name}:{self._choice.model}"

    def greet(self) -> None:
        """Show the model, the continued session, and an unfinished turn."""
        self._live.begin(self.model, self._choice.why)
        self._live.write(Text("  /help shows what can be done, Ctrl-D leaves", "dim"))
        if self._given.session is not None:
            self._greet_again()
        else:
            self._remind()

    def _greet_again(self) -> None:
        title, id = preview(self.agent.title, 80), f"  {clean(self.agent.session_id)}"
        self._live.write(Text.assemble("  ", (title, "bold"), (id, "dim")))
        asked, answer = last_exchange(store_of(self._given.home), self.agent.session_id)
        if asked:
            self._live.exchange(preview(asked, SHOWN), answer[:SHOWN] + "…" * (len(answer) > SHOWN))
        if (last := self._unfinished_turn()) is not None:
            words = f"  its last turn was left unfinished in {last.state}, after {last.seq} moves:"
            self._live.write(Text(f"{words} “{preview(last.asked, 60)}”", "yellow"))
            self._live.write(Text("  /resume continues it; another message gives it up", "yellow"))

    def _remind(self) -> None:
        """Remind the user of the newest turn if its process ended recently, before the turn did."""
        store, newest = store_of(self._given.home), next(iter(self.agent.journal.recent(1)), None)
        if newest is None or newest.ended is not None or store.now() - newest.moved > REMINDED:
            return
        if not store.owners.alive(newest.owner):
            self._live.write(Text(f"  a turn was left unfinished: “{preview(newest.asked, 60)}”", "yellow"))
            self._live.write(Text(f"  fsm-agent sessions resume {clean(newest.id)}", "yellow"))

    def _unfinished_turn(self) -> TurnInfo | None:
        newest = self.agent.journal.recent(1, self.agent.session_id)
        return next((turn for turn in newest if turn.ended is None), None)

    def toolbar(self) -> str:
        """Return the line below the prompt: model, figures, title."""
        parts = [
            self.model,
            figures(self.agent),
            f"“{preview(title, 40)}”" if (title := self.agent.title) else "",
        ]
        return " · ".join(clean(part) for part in parts if part)

    # Message after message

    async def go_on(self, read: Reader) -> None:
        """Answer message after message until the input ends."""
        self._learn_prompts()
        try:
            while (text := await self._next(read)) is not None:
                asked = None if self.agent.servers is None else _PROMPT.fullmatch(text.strip())
                if asked is not None:
                    await self._say_prompt(asked[1], asked[2] or "")
                    continue
                command, words = command_in(text)
                if command in ("exit", "quit"):
                    break
                if command in get_args(SecondMessage) and words:
                    text, command = words, ""
                if command:
                    await self._obey(command, words)
                elif text.strip():
                    await self._say(text)
            if self._last is not None:
                session = clean(self.agent.session_id)
                self._live.write(Text(f"  continue later: fsm-agent chat --session {session}", "dim"))
        finally:
            if self._learning is not None:
                self._learning.cancel()
            await self.agent.aclose()

    async def _next(self, read: Reader) -> str | None:
        if self._waiting:
            text = self._waiting.popleft()
            self._live.write(Text(f"\n{SIGN}{clean(text)}"))
            return text
        return await read("" if self._meanwhile is None else self._meanwhile.draft())

    async def _say(self, text: str) -> None:
        """Send a message, with the files that it mentions."""
        try:
            for path in mentions_in(text) if self._mentions else ():
                self._attach(path)
            if self._mentions:
                await self._attach_resources(text)
        except ConfigError as error:
            self._complain(error)
            return
        await self._send(text)

    async def _send(self, text: str | list[Part]) -> None:
        await self._make_room()
        words = [text] if isinstance(text, str) else text
        content: Content = [*words, *self._attached] if self._attached else text
        self._attached = []
        await self._answer(partial(self.agent.start, content))

    def _attach(self, path: str, kind: str = "") -> None:
        """Attach a file. It is read now, so that an error is shown at once."""
        image = kind == "image" or (not kind and path.lower().endswith(IMAGES))
        part = (ImagePart if image else FilePart)(path).part()
        self._attached.append(part)
        lines = len(str(part.get("text", "")).splitlines()) - 1  # without the heading
        what = f"{Path(path).name}, {count(lines, 'line')}," if part["type"] == "text" else name_part(part)
        self._live.write(Text(f"  {clean(what)} goes with the {'next ' * bool(kind)}message", "dim"))

    async def _answer(self, begin: Callable[[], Turn]) -> None:
        listening = nullcontext() if self._meanwhile is None else self._meanwhile.listening(self._hear)
        try:
            turn = begin()
            with listening:
                self._last = await run_live(self.agent, turn, self._live)
            signals = self.agent.signals
            self._waiting.extendleft(reversed((*self._last.pending_steer, *signals.take_steer())))
            signals.clear()  # a message too late for the turn must not reach the next one
        except TurnSuspended as waits:
            line = waiting_line(waits.pending, waits.turn_id)
            self._live.write(Text(f"  {line}, or say /resume", "yellow"))
        except (ConfigError, OwnershipLost, SessionBusy) as error:
            self._complain(error)

    def _hear(self, text: str) -> None:
        """Handle a message that arrives during a turn."""
        how: str = self.agent.settings.interrupt.second_message or "queue"
        command, words = command_in(text)
        if command in get_args(SecondMessage) and words:
            how, text = command, words
        elif command:
            how = "queue"
        if how == "steer":
            self.agent.steer(text)
        elif how == "interrupt":
            self._waiting.appendleft(text)
            self.agent.interrupt(text)
        else:
            self._waiting.append(text)
        self._live.write(Text(f"    {SIGN}{preview(text, 120)}  ({MEANWHILE[how]})", "yellow"))

    # Commands

    async def _obey(self, command: str, words: str) -> None:
        try:
            if command == "resume":
                await self._answer(partial(self.agent.resume, self.agent.session_id))
            elif (reply := await self._reply(command, words)) is not None:
                self._live.reply(reply)
        except (ConfigError, SessionBusy, StoreError) as error:
            self._complain(error)

    async def _reply(self, command: str, words: str) -> RenderableType | None:
        match command:
            case "help":
                return Text(help_text(self.prompts()))
            case "path":
                return Text(_path(self._last) if self._last else "There was no turn yet.")
            case "image" | "file" if words:
                self._attach(words, command)
                return None
            case "image" | "file":
                return Text(f"/{command} FILE adds it to the next message.")
            case "compact":
                return Text(compaction_words(await self._compact(words)))
            case "title" | "undo":
                return Text(await obey(self.agent, command, words))
            case "cost":
                return self._cost()
            case "tools":
                return self._tools()
            case "model" if not words:
                return Text(f"{self.model} answers; /model NAME changes it.")
            case "model":
                return await self._with_model(words)
            case "new":
                await self._become(replace(self._given, session=None))
                return Text("A new session; the last one is kept.")
            case "sessions" if words:
                await self._become(replace(self._given, session=words))
                self._greet_again()
                return None
            case "sessions":
                return recent(store_of(self._given.home), self._live.console.width)
        if command in get_args(SecondMessage):
            return Text(f"/{command} TEXT says it {CHAT[command][1]}.")
        return Text(f"There is no command /{command}; /help shows what can be done.")

    async def _become(self, given: CliOptions) -> None:
        """Continue with other options; nothing changes if they cannot be used."""
        agent, choice = agent_of(given, self._live)
        before, self.agent, self._choice = self.agent, agent, choice
        self._given, self._last, self._full = given, None, False
        self._learn_prompts()
        await before.aclose()

    async def _with_model(self, name: str) -> Text:
        """Continue the conversation with another model. An address applies only to the provider that it was
        given for."""
        same = name.partition(":")[0] == self._choice.profile.name
        address, key = (self._given.base_url, self._given.api_key) if same else (None, None)
        session = self.agent.session_id if self.agent.title else None
        await self._become(replace(self._given, model=name, base_url=address, api_key=key, session=session))
        return Text(f"{self.model} answers from now on.")

    def _cost(self) -> Text:
        """Return the usage and cost of the session so far, naming what is unknown."""
        spent = session_usage(store_of(self._given.home), self.agent.session_id)
        if not spent.requests:
            return Text("Nothing was counted: no model has said how many tokens it took.")
        cached = "" if spent.cache_hit is None else f", {spent.cache_hit:.0%} of the prompts from a cache"
        return Text(
            f"{count(spent.requests, 'request')} · {tokens(spent)} tokens ({spent.prompt:,} in{cached};"
            f" {spent.output:,} out) · cost {cost(spent)} · window {self.agent.context_used:.0%} full"
        )

    def _tools(self) -> RenderableType:
        """Return a table with the name and purpose of each tool."""
        asks, grid = (
            self.agent.settings.approval.policy,
            WholeTable(box=None, show_header=False, padding=(0, 2)),
        )
        for tool in sorted(self.agent.tools, key=lambda one: one.name):
            asked = tool.approval == "ask" or asks.get(tool.name) == "ask"
            purpose = preview(tool.description.partition(".")[0], 200)
            grid.add_row(Text(clean(tool.name), "bold"), Text("asks" if asked else "", "yellow"), purpose)
        return grid if grid.rows else Text("There are none.")

    async def _make_room(self) -> None:
        """Compact before a message if the window is almost full."""
        used, compression = self.agent.context_used, self.agent.settings.compression
        if not compression.enabled or used < compression.host_threshold or self._full:
            return
        self._live.status(f"the window is {used:.0%} full: compacting before your message is sent")
        try:
            await self._compact("")
        except (ConfigError, SessionBusy):
            pass  # an unfinished turn, which the message gives up
        finally:
            self._live.stop()

    async def _compact(self, focus: str) -> bool:
        with ctrl_c(self.agent.interrupt):
            self._full = await self.agent.acompact(focus) is None
        return not self._full

    def _complain(self, error: Exception) -> None:
        self._live.write(Text(clean(str(error)), "red"))


def last_exchange(store: Store, session: str) -> tuple[str, str]:
    """Return the last message of the user in a session and the text that answered it, without secrets; each
    is empty if the session has none."""
    asked = answer = ""
    for row in session_record(store, session).rows:
        words = mask(text_only(row.body.get("content"))).strip()
        if row.body["role"] == "user" and not row.body.get("summary"):
            asked, answer = words, ""
        elif row.body["role"] == "assistant" and words:
            answer = words
    return asked, answer


def _path(result: TurnResult) -> str:
    """Return one line for each state that the turn visited."""
    lines = [
        f"{number:3}  {visit.state:<14} {visit.event or result.turn_exit_reason.value:<22}"
        f" {seconds(visit.seconds):>9}"
        for number, visit in enumerate(result.states, 1)
    ]
    return "\n".join(lines)


@with_agent("quiet")
def chat(given: CliOptions, remote: Remote = False) -> int:
    """Talk with the agent, turn after turn."""
    if remote:
        from fsm_agent.cli.remote import chat_remote

        return chat_remote(given)
    person = sys.stdin.isatty()
    live = ProgressView(console_of(sys.stderr), console_of(sys.stdout), verbose=given.verbose)
    attend(live, given.yes)
    meanwhile = None
    if person and live.console.is_terminal and sys.platform != "win32":
        meanwhile = TypeAhead(live.show_draft)
        live.aside, live.keep = meanwhile.aside, meanwhile.keep
    talk = ChatSession(replace(given, source="chat"), live, meanwhile, mentions=person)
    talk.greet()
    read = terminal_reader(talk.agent.home, talk.toolbar, talk.prompts) if person else piped_reader(live)
    in_a_loop(talk.go_on(read))
    return 0
