"""What an editor may ask, by the Agent Client Protocol, and the connection over which it does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from acp import PROTOCOL_VERSION, run_agent
from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES
from acp.exceptions import RequestError
from acp.helpers import update_agent_message_text, update_available_commands
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    AvailableCommand,
    AvailableCommandInput,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    UnstructuredCommandInput,
)

from fsm_agent.acp.content import STOPS, Blocks, content_of, replay_updates
from fsm_agent.acp.updates import EditorView
from fsm_agent.agent import Agent
from fsm_agent.conversation.result import TurnResult
from fsm_agent.errors import ConfigError, FsmAgentError, TurnSuspended
from fsm_agent.sessions.store import store_for
from fsm_agent.support.processes import connect_own_streams
from fsm_agent.support.texts import clean, one_line
from fsm_agent.support.version import __version__

# ----------------------------------------------------------------------------------------------------
# One conversation of an editor: its prompts, one turn after the other, and what stops them.


RESUME = "resume"
"""The command that continues a turn that was left unfinished."""
FAILED = -32603
"""The code of an answer to a prompt whose turn failed."""
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(\S.*))?\s*", re.DOTALL)


class EditorHost(Protocol):
    """The program around the server."""

    reads: frozenset[str]
    """What the model reads besides text: image, audio, file."""
    yes: bool
    """Calls run without approval."""
    commands: Mapping[str, tuple[str, str]]
    """What a person may write after a slash: what it does, and its arguments."""

    def agent(self, view: EditorView, workdir: Path, session: str | None) -> Agent:
        """Make the agent of a session. Raises ``ConfigError``."""
        ...

    def obey(self, agent: Agent, command: str, words: str) -> Awaitable[str]:
        """Do what a command says, and return an answer in words."""
        ...


class EditorTalk:
    """A session that an editor has open. ``stored``: the name of one that is there already."""

    def __init__(
        self, host: EditorHost, client: Client, workdir: Path, stored: str | None = None, notice: str = ""
    ) -> None:
        self._host, self._workdir, self._notice = host, workdir, notice
        self._view = EditorView(client, workdir, yes=host.yes)
        try:
            self._agent = host.agent(self._view, workdir, stored)
        except BaseException:
            self._view.close()
            raise
        self.id = self._view.session_id = stored or self._agent.session_id
        self._asked: list[asyncio.Task[PromptResponse]] = []
        self._dropped: set[asyncio.Task[PromptResponse]] = set()

    # Beginning

    def offer(self) -> None:
        """Tell which commands there are."""
        commands = dict(self._host.commands)
        if self._unfinished_task():
            commands[RESUME] = ("Continue the turn that was left unfinished", "")
        self._view.tell(update_available_commands(_command(name, *told) for name, told in commands.items()))

    async def replay(self) -> None:
        """Tell what was said, and what was left unfinished."""
        home, url = self._agent.home, self._agent.settings.store.database
        for update in replay_updates(
            store_for(home, database_url=url).newest(self._agent.session_id).rows, self._workdir
        ):
            self._view.tell(update)
        if asked := self._unfinished_task():
            self._view.note(
                f"the last turn was left unfinished: “{one_line(asked, 60)}”; /{RESUME} continues it,"
                " another message gives it up"
            )
        await self._view.settled()

    def _unfinished_task(self) -> str:
        newest = next(iter(self._agent.journal.recent(1, self._agent.session_id)), None)
        return "" if newest is None or newest.ended is not None else newest.asked or "(no words)"

    # Prompts

    async def prompt(self, blocks: Blocks) -> PromptResponse:
        """Answer a prompt. One that comes while a turn runs waits, goes to the model, or ends the turn, as
        ``interrupt.second_message`` says. Raises ``RequestError`` for a turn that failed, ``FsmAgentError``
        for a prompt that cannot be used."""
        work = asyncio.ensure_future(self._answer(blocks))
        self._asked.append(work)
        try:
            return await work
        except asyncio.CancelledError:
            if work not in self._dropped:
                raise  # the connection is closed: the turn can be resumed
            return PromptResponse(stop_reason="cancelled")
        finally:
            self._asked.remove(work)
            self._dropped.discard(work)
            if not self._asked:
                self._agent.signals.clear()  # what came too late for the turn is no word to the next one

    async def _answer(self, blocks: Blocks) -> PromptResponse:
        content = await asyncio.to_thread(content_of, blocks)
        if self._notice:
            self._view.note(self._notice)
            self._notice = ""
        found = _COMMAND.fullmatch(content) if isinstance(content, str) else None
        if found is not None and found[1] in self._host.commands:
            said = await self._host.obey(self._agent, found[1], (found[2] or "").strip())
            self._view.tell(update_agent_message_text(clean(said)))
            await self._view.settled()
            return PromptResponse(stop_reason="end_turn")
        try:
            if found is not None and found[1] == RESUME:
                result = await self._agent.resume(self._agent.session_id).arun()
            else:
                result = await self._agent.arun(content)
        except TurnSuspended as waits:
            self._view.note(f"{waits}; answer it with fsm-agent pending answer, then say /{RESUME}")
            await self._view.settled()
            return PromptResponse(stop_reason="end_turn", field_meta={"fsm_agent": {"turn": waits.turn_id}})
        self._view.finish(result)
        await self._view.settled()
        return _prompt_response(result)

    def cancel(self) -> None:
        """End the turn that runs, and the prompts that wait behind it."""
        if not self._asked:
            return
        self._agent.interrupt()
        for waiting in self._asked[1:]:
            self._dropped.add(waiting)
            waiting.cancel()

    @property
    def busy(self) -> bool:
        """Whether a prompt is being answered."""
        return bool(self._asked)

    async def aclose(self) -> None:
        """Let the session go. A turn that runs is left where it is."""
        for work in self._asked:
            work.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        self._view.close()
        await self._agent.aclose()


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
"""The code of an answer to what cannot be done as it was asked."""
NOT_STARTED = (
    "MCP servers that the editor named were not started: {names}. Name them in config.toml if you want them"
)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """An error of ours is an answer of one line."""
    try:
        yield
    except FsmAgentError as error:
        raise RequestError(REFUSED, " ".join(str(error).split())) from None


class EditorServer:
    """The methods of the protocol, by the names that its library gives them."""

    def __init__(self, host: EditorHost) -> None:
        self._host = host
        self._talks: dict[str, EditorTalk] = {}

    def on_connect(self, client: Client) -> None:
        """Take the connection, over which the editor gets updates and questions."""
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Say what there is. An editor that knows no version of ours leaves."""
        prompts = PromptCapabilities(
            image="image" in self._host.reads, audio="audio" in self._host.reads, embedded_context=True
        )
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(load_session=True, prompt_capabilities=prompts),
            agent_info=Implementation(name="fsm-agent", title="fsm-agent", version=__version__),
            auth_methods=[],
        )

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> NewSessionResponse:
        """Begin a session that works in ``cwd``."""
        with _in_one_line():
            talk = EditorTalk(self._host, self._client, _folder(cwd), notice=_notice(mcp_servers))
        self._talks[talk.id] = talk
        talk.offer()
        return NewSessionResponse(session_id=talk.id)

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[Any] | None = None, **_: Any
    ) -> LoadSessionResponse:
        """Continue a stored session: all of it is sent before the answer."""
        with _in_one_line():
            if (open_now := self._talks.get(session_id)) is not None and open_now.busy:
                raise ConfigError("the session is busy", session_id, "one that answers no prompt")
            talk = EditorTalk(self._host, self._client, _folder(cwd), session_id, _notice(mcp_servers))
            if open_now is not None:
                await open_now.aclose()
            self._talks[session_id] = talk
            await talk.replay()
        talk.offer()
        return LoadSessionResponse()

    async def prompt(self, session_id: str, prompt: Blocks, **_: Any) -> PromptResponse:
        """Answer a prompt, when its turn has ended."""
        with _in_one_line():
            return await self._talk(session_id).prompt(prompt)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """End what runs in a session."""
        if session_id in self._talks:
            self._talks[session_id].cancel()

    async def aclose(self) -> None:
        """Let all sessions go."""
        for talk in self._talks.values():
            await talk.aclose()

    def _talk(self, session_id: str) -> EditorTalk:
        if session_id not in self._talks:
            raise ConfigError("no such session is open", session_id, "one of session/new or session/load")
        return self._talks[session_id]


def serve_stdio(host: EditorHost) -> int:
    """Serve one editor over standard input and output until it leaves; 0. Whatever else writes to standard
    output comes out on standard error. Raises ``ConfigError`` when there is no editor at the other end."""
    return asyncio.run(_serve(host))


async def _serve(host: EditorHost) -> int:
    server = EditorServer(host)
    try:
        reader, writer = await connect_own_streams(DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
    except ValueError:
        raise ConfigError(
            "standard input and output lead to no editor", None, "an editor that starts this command"
        ) from None
    try:
        methods = cast(Any, server)  # those that it has not are answered as not found
        await run_agent(methods, writer, reader)
    except AttributeError:  # what the library says of JSON that is no object
        raise ConfigError(
            "what came on standard input is not the Agent Client Protocol", None, "an editor"
        ) from None
    finally:
        await server.aclose()
    return 0


def _folder(cwd: str) -> Path:
    path = Path(cwd)
    if not path.is_absolute() or not path.is_dir():
        raise ConfigError("the working directory cannot be used", cwd, "the whole path of a folder")
    return path


def _notice(servers: Sequence[Any] | None) -> str:
    """What an editor names may come out of the folder that it shows: it starts no program of ours."""
    names = ", ".join(str(getattr(one, "name", "?")) for one in servers or ())
    return NOT_STARTED.format(names=names) if names else ""
