"""What an editor may ask, by the Agent Client Protocol, and the connection over which it does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from acp import PROTOCOL_VERSION, run_agent
from acp.core import DEFAULT_STDIO_BUFFER_LIMIT_BYTES
from acp.exceptions import RequestError
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
)

from fsm_agent.acp.session import EditorHost, EditorTalk
from fsm_agent.acp.words import Blocks
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.support.own_streams import own_streams
from fsm_agent.support.version import __version__

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
        """Take the connection, over which the editor is told and asked."""
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
        """Go on with a stored session: all of it is told before the answer."""
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
    loop, (reading, writing) = asyncio.get_running_loop(), own_streams()
    reader = asyncio.StreamReader(limit=DEFAULT_STDIO_BUFFER_LIMIT_BYTES)
    server = EditorServer(host)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reading)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), writing
        )
    except ValueError:
        raise ConfigError(
            "standard input and output lead to no editor", None, "an editor that starts this command"
        ) from None
    try:
        methods = cast(Any, server)  # those that it has not are answered as not found
        await run_agent(methods, asyncio.StreamWriter(transport, protocol, None, loop), reader)
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
