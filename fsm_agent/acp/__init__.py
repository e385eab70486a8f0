"""The agent in an editor: a server of the Agent Client Protocol. See ``docs/acp.md``.

This module has the methods that an editor may call, and the connection; ``updates`` turns callbacks into
updates, asks the person, shows calls, reads prompts, and replays transcripts. Needs the extra ``acp``."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, cast

from acp import PROTOCOL_VERSION, run_agent
from acp.exceptions import RequestError
from acp.helpers import update_agent_message_text, update_available_commands
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AvailableCommand,
    AvailableCommandInput,
    ForkSessionResponse,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    SessionCapabilities,
    SessionForkCapabilities,
    SessionInfo,
    SessionListCapabilities,
    UnstructuredCommandInput,
)

from fsm_agent.acp.updates import STOPS, Blocks, EditorView, content_of, replay_updates
from fsm_agent.agent import Agent
from fsm_agent.conversation.messages import Message
from fsm_agent.conversation.result import TurnResult
from fsm_agent.dispatch.dispatcher import Order
from fsm_agent.dispatch.service import LOCAL, Busy, NotFound, ServiceError, SessionService
from fsm_agent.errors import ConfigError, FsmAgentError, TurnSuspended
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.kept_values import OF_SESSIONS, KeptValues
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support import __version__
from fsm_agent.support.texts import clean, one_line
from fsm_agent.support.threads import CHUNK, BoundedLines, connect_own_streams, send

__all__ = ["EditorHost", "EditorServer", "EditorView", "serve_stdio"]


# ----------------------------------------------------------------------------------------------------
# One conversation of an editor: its prompts, one turn after the other, and what stops them.


RESUME = "resume"
"""The command that continues an unfinished turn."""
FAILED = -32603
"""Error code for a prompt whose turn failed."""
FOLDERS = f"acp{OF_SESSIONS}"
"""The name under which the store keeps the working directory of each editor session."""
MOST_LISTED = 1_000
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(\S.*))?\s*", re.DOTALL)


class EditorHost(Protocol):
    """The program around the server."""

    store: Store
    """The store of the sessions."""
    reads: frozenset[str]
    """Media types that the model reads besides text: image, audio, file."""
    commands: Mapping[str, tuple[str, str]]
    """Slash commands: what each does, and its arguments."""

    def agent(self, view: EditorView, workdir: Path, session: str | None) -> Agent:
        """Create a session's agent, which asks through the view. Raises ``ConfigError``."""
        ...

    def obey(self, agent: Agent, command: str, words: str) -> Awaitable[str]:
        """Run a command, and return an answer in words."""
        ...


@dataclass(slots=True)
class Prompt:
    """A prompt that is being answered, and its ``turn`` once there is one."""

    turn: str = ""
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


class EditorTalk:
    """A session that an editor has open. ``stored``: the name of an existing one. ``history``: the messages
    of the session that it was forked from, if any."""

    def __init__(
        self,
        host: EditorHost,
        service: SessionService,
        view: EditorView,
        agent: Agent,
        stored: str | None,
        notice: str,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._history, self._folders = history, KeptValues(host.store, FOLDERS)
        self._host, self._service, self._view, self._notice = host, service, view, notice
        self.agent = agent
        self.id = view.session_id = stored or agent.session_id
        self.first = self.id if stored is None else service.load(LOCAL, stored)["session"]
        self._prompts: list[Prompt] = []
        self._line = asyncio.Lock()  # one prompt at a time, also while the person is asked
        self._heard: dict[str, str] = {}  # the id of the last event of a turn that was shown

    # Beginning

    def offer(self) -> None:
        """Send the available commands."""
        commands = dict(self._host.commands)
        if self._unfinished() is not None:
            commands[RESUME] = ("Continue the turn that was left unfinished", "")
        self._view.tell(update_available_commands(_command(name, *info) for name, info in commands.items()))

    async def replay(self) -> None:
        """Send the transcript, and a note on an unfinished turn."""
        for update in replay_updates(self._rows(self.id), self._view.workdir):
            self._view.tell(update)
        if (left := self._unfinished()) is not None:
            asked = one_line(left["asked"] or "(no words)", 60)
            self._view.note(
                f"the last turn was left unfinished: “{asked}”; /{RESUME} continues it,"
                " another message gives it up"
            )
        await self._view.flush()

    def _rows(self, session: str) -> list[Message]:
        return [Message.from_dict(row) for row in self._service.load(LOCAL, session)["messages"]]

    def _unfinished(self) -> Mapping[str, Any] | None:
        """Return the last turn if it has not ended."""
        try:
            newest = self._service.load(LOCAL, self.id)["turns"][-1:]
        except NotFound:  # there was no message yet
            return None
        return next((one for one in newest if one["ended"] is None), None)

    # Prompts

    async def prompt(self, blocks: Blocks) -> PromptResponse:
        """Answer a prompt. One that arrives during a turn waits, goes to the model, or ends the turn, as
        ``interrupt.second_message`` says. Raises ``RequestError`` if the turn failed, ``FsmAgentError`` if
        the prompt cannot be used."""
        self._prompts.append(prompt := Prompt())
        try:
            return await self._answer(prompt, blocks)
        except ServiceError:
            if prompt.cancelled.is_set():
                return PromptResponse(stop_reason="cancelled")
            raise
        finally:
            self._prompts.remove(prompt)
            if not self._prompts:
                self.agent.signals.clear()  # a message too late for the turn must not reach the next one

    async def _answer(self, prompt: Prompt, blocks: Blocks) -> PromptResponse:
        content = await asyncio.to_thread(content_of, blocks)
        if prompt.cancelled.is_set():
            return PromptResponse(stop_reason="cancelled")
        if self._notice:
            self._view.note(self._notice)
            self._notice = ""
        found = _COMMAND.fullmatch(content) if isinstance(content, str) else None
        if found is not None and found[1] in self._host.commands:
            reply = await self._host.obey(self.agent, found[1], (found[2] or "").strip())
            self._view.tell(update_agent_message_text(clean(reply)))
            await self._view.flush()
            return PromptResponse(stop_reason="end_turn")
        running = next((one.turn for one in self._prompts if one.turn), "")
        if running and (result := await self._say(running, content)) is not None:
            return _prompt_response(result)
        async with self._line:
            if prompt.cancelled.is_set():
                return PromptResponse(stop_reason="cancelled")
            resumes = found is not None and found[1] == RESUME
            prompt.turn = await self._begin(content, resumes)
            if prompt.cancelled.is_set():
                await self._service.interrupt(LOCAL, prompt.turn)
            return await self._follow(prompt.turn)

    async def _begin(self, content: Any, resumes: bool) -> str:
        """Begin or continue the turn of a prompt; return its id. A text answers the question that the last
        turn waits for."""
        left = self._unfinished()
        if left is None and resumes:
            raise ConfigError("nothing to resume: the last turn has ended", self.id)
        turn = "" if left is None else left["turn"]
        waits = self._service.pending(LOCAL, turn) if turn and isinstance(content, str) else []
        question = next((one for one in waits if one.kind == "question"), None)
        if not resumes and question is None:
            return await self._start(content)
        # do not repeat what the transcript already shows of a turn
        self._heard.setdefault(turn, f"{self._service.about(LOCAL, turn).get('moves', 0)}.0")
        if resumes or question is None:
            await self._service.resume(LOCAL, turn)
        else:
            await self._service.answer(LOCAL, question.id, content)
        return turn

    async def _start(self, content: Any) -> str:
        """Begin a turn, which stores the session with its origin, if forked, and its working directory."""
        given: dict[str, Any] = {"conversation_history": self._history} if self._history else {}
        turn = await self._service.start(LOCAL, content, self.id, **given)
        self._history, folder = (), str(self._view.workdir)
        if self._folders.get(self.first) != folder:
            await self._folders.put(self.first, folder)
        return turn

    async def _say(self, running: str, content: Any) -> TurnResult | None:
        """Handle a message during a turn; return the turn's result if the model has read the message."""
        how, words = self.agent.settings.interrupt.second_message, isinstance(content, str)
        if how == "interrupt":
            await self._service.interrupt(LOCAL, running, content if words else None)
        elif how == "steer" and words:
            try:
                await self._service.steer(LOCAL, running, content)
                async with self._line:
                    result = await self._service.result(LOCAL, running)
            except (Busy, TurnSuspended):  # just ended, or waiting for the next message
                return None
            unread = [*result.pending_steer, *self.agent.signals.take_steer()]
            return None if content in unread else result
        return None

    async def _follow(self, turn: str) -> PromptResponse:
        """Show the events of a turn, and pass its questions to the person, until it has ended."""
        while True:
            async for one in self._service.events(LOCAL, turn, self._heard.get(turn, "")):
                self._heard[turn] = one.id
                self._view.hear(one.event)
            try:
                result = await self._service.result(LOCAL, turn)
                break
            except TurnSuspended as waits:
                for item in waits.pending:
                    if item.kind == "approval":
                        await self._approve(turn, item)
                if any(item.kind != "approval" for item in waits.pending):
                    answers = any(item.kind == "question" for item in waits.pending)
                    todo = "your next message answers it" if answers else f"when it is there, say /{RESUME}"
                    asked = "".join(f"\n{one.asked}" for one in waits.pending if one.kind == "question")
                    self._view.note(f"{waits}; {todo}{asked}")
                    await self._view.flush()
                    about = {"fsm_agent": {"turn": waits.turn_id}}
                    return PromptResponse(stop_reason="end_turn", field_meta=about)
        self._heard.pop(turn, None)
        self._view.finish(result)
        await self._view.flush()
        return _prompt_response(result)

    async def _approve(self, turn: str, item: Pending) -> None:
        calls = (call for row in self._rows(item.session) for call in row.tool_calls)
        call = next((one for one in calls if one.id == item.call), None)
        answer = await self._view.approve(item, call)
        try:
            await self._service.answer(LOCAL, item.id, answer)
        except Busy:  # answered elsewhere meanwhile
            await self._service.resume(LOCAL, turn)

    async def cancel(self) -> None:
        """End the running turn, and the prompts that wait behind it."""
        for one in self._prompts:
            one.cancelled.set()
        for one in reversed(self._prompts):
            if one.turn:
                await self._service.interrupt(LOCAL, one.turn)

    @property
    def busy(self) -> bool:
        """Return whether a prompt is being answered."""
        return bool(self._prompts)

    async def aclose(self) -> None:
        """Close the session."""
        self._view.close()
        await self.agent.aclose()


def _prompt_response(result: TurnResult) -> PromptResponse:
    reason = result.turn_exit_reason
    about = {
        "fsm_agent": {"exit_reason": reason.value, "outcome": reason.outcome.value, "turn": result.turn_id}
    }
    stop = STOPS[reason]
    if stop is None:
        line = one_line(result.error or result.final_response or reason.value.replace("_", " "))
        raise RequestError(FAILED, line, about["fsm_agent"])
    return PromptResponse(stop_reason=stop, field_meta=about)


def _command(name: str, does: str, behind: str) -> AvailableCommand:
    hint = AvailableCommandInput(UnstructuredCommandInput(hint=behind)) if behind else None
    return AvailableCommand(name=name, description=does, input=hint)


REFUSED = -32602
"""Error code for a request that cannot be performed."""
NOT_STARTED = (
    "MCP servers that the editor named were not started: {names}. Name them in config.toml if you want them"
)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Turn one of our errors into a response of one line."""
    try:
        yield
    except FsmAgentError as error:
        raise RequestError(REFUSED, " ".join(str(error).split())) from None


class EditorServer:
    """The methods of the protocol, under the names that its library gives them."""

    def __init__(self, host: EditorHost) -> None:
        self._host = host
        self._talks: dict[str, EditorTalk] = {}
        self._service = SessionService(self._agent_of, host.store, attended=True)

    async def open(self) -> None:
        """Start running turns."""
        await self._service.open()

    def on_connect(self, client: Client) -> None:
        """Store the connection, over which the editor receives updates and questions."""
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Return the capabilities. An editor that supports no version of ours disconnects."""
        prompts = PromptCapabilities(
            image="image" in self._host.reads, audio="audio" in self._host.reads, embedded_context=True
        )
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=prompts,
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(), fork=SessionForkCapabilities()
                ),
            ),
            agent_info=Implementation(name="fsm-agent", title="fsm-agent", version=__version__),
            auth_methods=[],
        )

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> NewSessionResponse:
        """Begin a session that works in ``cwd``."""
        with _in_one_line():
            talk = self._open(cwd, None, mcp_servers)
        self._talks[talk.id] = talk
        talk.offer()
        return NewSessionResponse(session_id=talk.id)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> LoadSessionResponse:
        """Continue a stored session: its transcript is sent before the response."""
        with _in_one_line():
            open_now = self._not_busy(session_id)
            talk = self._open(cwd, session_id, mcp_servers)
            if open_now is not None:
                await open_now.aclose()
            self._talks[session_id] = talk
            await talk.replay()
        talk.offer()
        return LoadSessionResponse()

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        """List the sessions of editors, most recently used first: of all folders, or of one."""
        with _in_one_line():
            if cursor is not None:
                raise ConfigError("there is no more than one page of sessions", cursor, "no cursor")
            if cwd is not None and not Path(cwd).is_absolute():
                raise ConfigError("the working directory cannot be used", cwd, "the whole path of a folder")
            wanted, folders = cwd and str(Path(cwd)), KeptValues(self._host.store, FOLDERS).all()
            found = [
                SessionInfo(
                    session_id=one["session"],
                    cwd=folder,
                    title=one["title"] or None,
                    updated_at=datetime.fromtimestamp(one["touched"], UTC).isoformat(),
                )
                for one in self._service.sessions(LOCAL, MOST_LISTED)
                if (folder := folders.get(one["session"])) and wanted in (None, folder)
            ]
        return ListSessionsResponse(sessions=found)

    async def fork_session(
        self, session_id: str, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> ForkSessionResponse:
        """Begin a session with the messages of a stored one, which does not change."""
        with _in_one_line():
            self._not_busy(session_id)
            stored = self._service.load(LOCAL, session_id)
            if any(one["ended"] is None for one in stored["turns"][-1:]):
                raise ConfigError("the last turn of the session was left unfinished", session_id)
            talk = self._open(cwd, None, mcp_servers, stored["messages"])
        self._talks[talk.id] = talk
        talk.offer()
        return ForkSessionResponse(session_id=talk.id)

    async def prompt(self, session_id: str, prompt: Blocks, **_: Any) -> PromptResponse:
        """Answer a prompt once its turn has ended."""
        with _in_one_line():
            return await self._talk(session_id).prompt(prompt)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """End the running turn of a session, and the prompts behind it."""
        if session_id in self._talks:
            await self._talks[session_id].cancel()

    async def aclose(self) -> None:
        """Close all sessions. A running turn is left where it is."""
        await self._service.aclose()
        for talk in self._talks.values():
            await talk.aclose()

    def _not_busy(self, session_id: str) -> EditorTalk | None:
        """Return the session if it is open. Raises ``ConfigError`` while it answers a prompt."""
        if (open_now := self._talks.get(session_id)) is not None and open_now.busy:
            raise ConfigError("the session is busy", session_id, "one that answers no prompt")
        return open_now

    def _open(
        self,
        cwd: str,
        stored: str | None,
        servers: Sequence[Any] | None,
        history: Sequence[Mapping[str, Any]] = (),
    ) -> EditorTalk:
        view = EditorView(self._client, folder := _folder(cwd))
        try:
            agent = self._host.agent(view, folder, stored)
            notice = _notice(servers)
            return EditorTalk(self._host, self._service, view, agent, stored, notice, history)
        except BaseException:
            view.close()
            raise

    def _agent_of(self, order: Order) -> Agent:
        found = next((one for one in self._talks.values() if one.first == order.session), None)
        if found is None:
            raise ConfigError("no such session is open", order.session)
        return found.agent

    def _talk(self, session_id: str) -> EditorTalk:
        if session_id not in self._talks:
            raise ConfigError("no such session is open", session_id, "one of session/new or session/load")
        return self._talks[session_id]


# ----------------------------------------------------------------------------------------------------
# The editor at the other end of standard input and output.


LONGEST = 50 * 1024 * 1024
"""Bytes of a message, which may hold files."""


class EditorLines:
    """The transport of the library, one message a line. A line that is no message is answered, and the next
    one read; the library would end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, self._messages = writer, self._read(reader)

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; ``None`` once the editor has left."""
        return await anext(self._messages, None)

    async def _read(self, reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        lines = BoundedLines(LONGEST)
        while piece := await reader.read(CHUNK):
            for line in lines.feed(piece):
                try:
                    if line is None or line.strip():
                        yield read_message(line)
                except RequestError as error:
                    await self.send({"jsonrpc": "2.0", "id": None, "error": error.to_error_obj()})

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message. Raises ``ConnectionError`` if the editor has left."""
        await send(self._writer, json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def close(self) -> None:
        """Do nothing: the streams belong to the process."""


def read_message(line: bytes | None) -> dict[str, Any]:
    """Parse a line, or ``None`` for one that was too long. Raises ``RequestError`` unless it is a request, a
    notification, or a response, as far as the library needs to answer by itself."""
    if line is None:
        raise RequestError.invalid_request({"details": f"a message has at most {LONGEST:,} bytes"})
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError.parse_error({"details": "a line is one message, in JSON"}) from None
    if not isinstance(message, dict) or not isinstance(message.get("id"), int | str | None):
        raise RequestError.invalid_request({"details": "a message is an object with a text or number as id"})
    responds = "result" in message or isinstance(message.get("error"), dict)
    if message.get("method") is None and not ("id" in message and responds):
        raise RequestError.invalid_request({"details": "a message has a method, or an id with its result"})
    return message


def serve_stdio(host: EditorHost) -> int:
    """Serve one editor over standard input and output until it leaves; return 0. Any other output goes to
    standard error. Raises ``ConfigError`` if there is no editor at the other end."""
    return asyncio.run(_serve(host))


async def _serve(host: EditorHost) -> int:
    server = EditorServer(host)
    await server.open()
    try:
        lines = EditorLines(*await connect_own_streams())
    except ValueError:
        raise ConfigError(
            "standard input and output lead to no editor", None, "an editor that starts this command"
        ) from None
    try:
        methods = cast(Any, server)  # missing ones are answered as not found
        await run_agent(methods, lines, use_unstable_protocol=True)  # for session/fork
    finally:
        await server.aclose()
    return 0


def _folder(cwd: str) -> Path:
    path = Path(cwd)
    if not path.is_absolute() or not path.is_dir():
        raise ConfigError("the working directory cannot be used", cwd, "the whole path of a folder")
    return path


def _notice(servers: Sequence[Any] | None) -> str:
    """Return a notice that these servers, which may come from the open folder, are not started."""
    names = ", ".join(str(getattr(one, "name", "?")) for one in servers or ())
    return NOT_STARTED.format(names=names) if names else ""
