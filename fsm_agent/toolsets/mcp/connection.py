"""One open connection to a server: its two transports and the session over them. The only module that loads
the SDK, when a server is first used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    URL_ELICITATION_REQUIRED,
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    EmbeddedResource,
    Implementation,
    ListRootsResult,
    LoggingMessageNotificationParams,
    Root,
    ServerNotification,
    Tool,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from fsm_agent.providers.sdk_port import tls
from fsm_agent.providers.transport import BoundedBody
from fsm_agent.support import __version__
from fsm_agent.support.texts import one_line
from fsm_agent.support.threads import in_daemon_thread, send
from fsm_agent.toolsets.mcp.config import HERE
from fsm_agent.toolsets.mcp.elicitation import DECLINED, Asker, ServerQuestion
from fsm_agent.toolsets.mcp.offer import (
    PROMPT,
    PROMPTS,
    RESOURCE,
    RESOURCES,
    Listed,
    ServerPrompt,
)
from fsm_agent.toolsets.mcp.process import (
    Broken,
    ConnectionEnding,
    Endpoint,
    FloodGuard,
    Launch,
    LineReader,
    McpRefused,
    ProtocolViolation,
    ServerLog,
    Unusable,
    start_server,
    status_of,
)
from fsm_agent.toolsets.mcp.results import Result, list_of, result_of

log = logging.getLogger(__name__)
for _name in ("mcp", "client"):
    # the SDK's own; visible in programs that configure logging, hidden in a terminal
    logging.getLogger(_name).addHandler(logging.NullHandler())

# ----------------------------------------------------------------------------------------------------
# The protocol over streamable HTTP, with limits on what a server may answer.


CONNECT, READ = 15.0, 3_600.0
"""Seconds for a connection, and between two pieces of an answer: each call has its own limit, and a server
that pushes messages may be silent for long."""
NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)
"""Errors that mean that no byte of a request has left."""


class Statuses:
    """The status of the last refused request, which the SDK does not pass on; 0 after an accepted one."""

    def __init__(self) -> None:
        self.code, self.phrase = 0, ""

    def note(self, response: httpx2.Response) -> None:
        """Record the status of the newest message to the server if refused; clear it otherwise."""
        if response.request.method == "POST":
            refused = response.status_code >= 400
            self.code, self.phrase = (response.status_code, response.reason_phrase) if refused else (0, "")

    def __str__(self) -> str:
        return f"HTTP {self.code} {self.phrase}".rstrip() if self.code else ""


@asynccontextmanager
async def http(
    endpoint: Endpoint, most: int, statuses: Statuses, auth: httpx2.Auth | None = None
) -> AsyncIterator[Any]:
    """Yield the streams of a session. ``most``: bytes of one message. ``auth`` signs requests. Proxies of the
    environment are used for other machines only."""

    async def check(request: httpx2.Request) -> None:
        """Check the host: a login sends requests to hosts that the server names."""
        if request.url.scheme != "https" and request.url.host not in HERE and not endpoint.plain:
            raise ProtocolViolation(f"it wants {request.url.host} to be asked without TLS")

    async def look(response: httpx2.Response) -> None:
        statuses.note(response)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise ProtocolViolation("it answered compressed, which was not asked for and has no bound")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = BoundedBody(response, most)
        response.encoding = "utf-8"  # JSON is UTF-8, whatever character set a header names

    context = await in_daemon_thread(tls)  # reading the certificates would block the loop
    async with (
        httpx2.AsyncClient(
            verify=context,
            headers={**endpoint.headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(CONNECT, read=READ),
            trust_env=httpx2.URL(endpoint.url).host not in HERE,
            auth=auth,
            event_hooks={"request": [check], "response": [look]},
        ) as client,
        streamable_http_client(endpoint.url, http_client=client, max_sse_event_size=most) as streams,
    ):
        yield streams


# ----------------------------------------------------------------------------------------------------
# The protocol over a process's standard input and output.
#
# The SDK's own transport has no limits: a line without an end grows indefinitely, each invalid line writes a
# traceback to this program's log, and neither the process nor the reason for its end is available.


_CHUNK = 65_536
MOMENT, _LOOK = 1.0, 0.01
"""Seconds: how long a process may outlive its output, because a busy machine reports its end late; and the
interval between checks."""
_SHOWN = 200
"""Bytes to log of a line that is not a message."""

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio(
    launch: Launch, server_log: ServerLog, most: int, ending: ConnectionEnding
) -> AsyncIterator[Streams]:
    """Yield the streams of a session with a new process. ``most``: bytes of one message. When the process
    ends or misbehaves, ``ending`` receives the reason and the streams end. Raises ``OSError`` if it cannot be
    started."""
    server = await start_server(launch)
    process = server.process
    to_session, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as tasks:
            _carry(tasks, process, server_log, most, ending, to_session, from_session)
            try:
                yield incoming, outgoing
            finally:
                with anyio.CancelScope(shield=True):
                    await server.end(polite=ending.wanted)
                tasks.cancel_scope.cancel()
    finally:
        for stream in (to_session, incoming, outgoing, from_session):
            stream.close()


def _carry(
    tasks: TaskGroup,
    process: asyncio.subprocess.Process,
    server_log: ServerLog,
    most: int,
    ending: ConnectionEnding,
    to_session: MemoryObjectSendStream[Incoming],
    from_session: MemoryObjectReceiveStream[SessionMessage],
) -> None:
    """Start the tasks that move bytes between the pipes and the streams."""
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdin is not None
    tasks.start_soon(_listen, process.stderr, server_log)
    tasks.start_soon(_read, process, process.stdout, server_log, most, ending, to_session)
    tasks.start_soon(_write, process.stdin, from_session)


async def _read(
    process: asyncio.subprocess.Process,
    pipe: asyncio.StreamReader,
    server_log: ServerLog,
    most: int,
    ending: ConnectionEnding,
    to_session: MemoryObjectSendStream[Incoming],
) -> None:
    lines, flood = LineReader(most), FloodGuard()
    try:
        async with to_session:
            while piece := await pipe.read(_CHUNK):
                for line in lines.feed(piece):
                    if (message := _message(line, flood, server_log)) is not None:
                        await to_session.send(message)
            ending.end(await _why(process, server_log))
    except ProtocolViolation as error:
        ending.end(str(error))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        ending.end("the connection was closed")


def _message(line: bytes, flood: FloodGuard, server_log: ServerLog) -> SessionMessage | None:
    """Parse a line as a message; log an invalid one and return ``None``, because the next may be valid."""
    if not line.strip():
        flood.noise(len(line))
        return None
    try:
        message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        flood.noise(len(line))
        server_log.say(f"(no message) {line[:_SHOWN].decode('utf-8', 'replace')}")
        return None
    flood.message()
    return message


async def _why(process: asyncio.subprocess.Process, server_log: ServerLog) -> str:
    """Describe an end that came from the other side."""
    for _ in range(round(MOMENT / _LOOK)):  # the pipe closes just before the exit is known
        if process.returncode is not None:
            break
        await anyio.sleep(_LOOK)
    for _ in range(5):  # rounds of the event loop: its last words have arrived, but may be unread
        await anyio.lowlevel.checkpoint()
    code = process.returncode
    how = "the process closed its output" if code is None else f"the process ended with {status_of(code)}"
    return f"{how}: {words}" if (words := server_log.last_words) else how


async def _write(pipe: asyncio.StreamWriter, from_session: MemoryObjectReceiveStream[SessionMessage]) -> None:
    """Write messages. A server that does not read blocks the sender, whose own time limit ends that."""
    try:
        async with from_session:
            async for item in from_session:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await send(pipe, text.encode() + b"\n")
    except (anyio.ClosedResourceError, OSError):
        log.debug("a server's standard input was closed")


async def _listen(pipe: asyncio.StreamReader, server_log: ServerLog) -> None:
    while piece := await pipe.read(_CHUNK):
        server_log.feed(piece)


# ----------------------------------------------------------------------------------------------------
# The SDK's session over either transport.


MOST_PAGES = 50
MOST_LISTED = 1_000
"""Maximum tools to read from one server; fewer are offered."""
CLOSE = 4.0
"""Seconds for an orderly end; a process that does not end needs two."""
_NOTICED = MOMENT + 1
"""Seconds from the first sign of an end until its reason is known."""


class Connection:
    """A connection: opened once, closed once, never reopened. ``changed`` is called when the server's tools
    may have changed. ``asks``: a person can answer the server during calls. ``auth`` signs requests.

    Every method belongs to the engine's loop. A task of its own holds the SDK's client from start to end,
    because its scopes must be left by the task that entered them."""

    def __init__(
        self,
        endpoint: Endpoint,
        server_log: ServerLog,
        most: int,
        changed: Callable[[], None],
        asks: bool,
        auth: httpx2.Auth | None = None,
    ) -> None:
        self._endpoint, self._log, self._most, self._changed = endpoint, server_log, most, changed
        self._asks, self._askers, self._auth = asks, list[Asker](), auth
        self._ending, self._statuses, self._flood = ConnectionEnding(), Statuses(), FloodGuard()
        self._opened, self._scope = asyncio.Event(), anyio.CancelScope()
        self._client: Client | None = None
        self.deaf = False
        """Whether changes of the tools would go unnoticed."""
        self._calls, self._unsent = 0, False
        self._keeper: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._opened.is_set() and not self._ending.came

    @property
    def reason(self) -> str:
        """Why it ended; empty while it is alive."""
        return self._ending.reason

    async def open(self) -> None:
        """Open the connection. Raises ``Broken`` with the reason if that fails. Has no time limit of its
        own."""
        self._keeper = asyncio.create_task(self._keep())
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait({self._keeper, opened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if not self._opened.is_set():
            raise Broken(self._ending.reason, sent=False)

    async def close(self) -> None:
        """Close it and wait until all processes and sockets are gone."""
        self._ending.want()
        if self._keeper is None:
            return
        _, late = await asyncio.wait({self._keeper}, timeout=CLOSE)
        if late:
            self._scope.cancel()
            await asyncio.wait({self._keeper}, timeout=CLOSE)

    def abandon(self) -> None:
        """Close it at once, without waiting."""
        self._ending.end("it was closed")
        self._scope.cancel()

    async def tools(self) -> list[Listed]:
        """Return all tools that the server lists, and those that read its resources and prompts. Raises
        ``Broken``, ``McpRefused`` or ``Unusable``."""
        listed: list[Listed] = []
        with self._explain_errors():
            offered = self._living().server_capabilities
            if offered.tools is not None or not (offered.resources or offered.prompts):
                listed += [_list_all(tool) async for tool in self._pages()]
        readers = (RESOURCES, RESOURCE) * bool(offered.resources) + (PROMPTS, PROMPT) * bool(offered.prompts)
        own = {one.name for one in listed}
        return [*listed, *(one for one in readers if one.name not in own)]

    async def prompts(self, server: str) -> list[ServerPrompt]:
        """Return all prompts that the server lists. Raises ``Broken``, ``McpRefused`` or ``Unusable``."""
        listed: list[ServerPrompt] = []
        with self._explain_errors():
            if not self._living().server_capabilities.prompts:
                return []
            cursor: str | None = None
            for _ in range(MOST_PAGES):
                page = await self._living().list_prompts(cursor=cursor)
                for one in page.prompts[: MOST_LISTED - len(listed)]:
                    arguments = {each.name: bool(each.required) for each in one.arguments or ()}
                    listed.append(
                        ServerPrompt(server, one.name, one.description or one.title or "", arguments)
                    )
                if (cursor := page.next_cursor) is None:
                    break
        return listed

    async def call(self, tool: Listed, arguments: Mapping[str, Any], asker: Asker | None = None) -> Result:
        """Call a tool. Cancellation notifies the server. ``asker`` answers questions of the server meanwhile.
        Raises ``Broken``, ``McpRefused`` or ``Unusable``."""
        self._calls += 1
        if asker is not None:
            self._askers.append(asker)
        try:
            with self._explain_errors():
                try:
                    return await self._result(tool, dict(arguments))
                except MCPError as error:
                    if asker is None or not await _pages_opened(error, asker):
                        raise
                    return await self._result(tool, dict(arguments))
        except Broken as broken:
            # The SDK's reason is only "closed"; the keeper learns the real one a moment later.
            reason = await self._reason(str(broken))
            raise Broken(reason, sent=broken.sent and not (self._unsent and self._calls == 1)) from None
        finally:
            self._calls -= 1
            if asker is not None:
                self._askers.remove(asker)

    async def _result(self, tool: Listed, arguments: dict[str, Any]) -> Result:
        client = self._living()
        cursor: str | None = arguments.get("cursor")
        match tool.reads:
            case "resources/list":
                found = await client.list_resources(cursor=cursor)
                templates = () if cursor else (await client.list_resource_templates()).resource_templates
                return list_of((*found.resources, *templates), found.next_cursor)
            case "resources/read":
                contents = (await client.read_resource(str(arguments.get("uri")))).contents
                blocks = [EmbeddedResource(type="resource", resource=one) for one in contents]
                return result_of(CallToolResult(content=[*blocks]))
            case "prompts/list":
                named = await client.list_prompts(cursor=cursor)
                return list_of(named.prompts, named.next_cursor)
            case "prompts/get":
                words = {name: str(value) for name, value in (arguments.get("arguments") or {}).items()}
                prompt = await client.get_prompt(str(arguments.get("name")), words)
                return result_of(CallToolResult(content=[one.content for one in prompt.messages]))
            case _:
                answer: CallToolResult = await client.call_tool(tool.name, arguments)
                return result_of(answer)

    # The SDK's client

    async def _keep(self) -> None:
        try:
            with self._scope:
                async with self._make() as client:
                    self._client = client
                    self._opened.set()
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._subscribe, client)
                        await self._ending.wait()
                        tasks.cancel_scope.cancel()
        except Exception as error:
            leaf = _leaf(error)
            self._unsent = isinstance(leaf, NOT_SENT)
            self._ending.end(self._words(leaf))
            log.debug("the connection to an MCP server ended", exc_info=True)
        finally:
            self._ending.end("it was closed")

    def _make(self) -> Client:
        transport: AbstractAsyncContextManager[Any]
        if self._endpoint.launch is not None:
            transport = stdio(self._endpoint.launch, self._log, self._most, self._ending)
        else:
            transport = http(self._endpoint, self._most, self._statuses, self._auth)
        return Client(
            transport,
            cache=None,
            client_info=Implementation(name="fsm-agent", version=__version__),
            list_roots_callback=self._roots if self._endpoint.roots else None,
            elicitation_callback=self._elicit if self._asks else None,
            message_handler=self._message,
            logging_callback=self._on_log,
        )

    async def _subscribe(self, client: Client) -> None:
        """Subscribe to tool changes, which servers of the newest protocol report only on request."""
        offered = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (offered and offered.list_changed):
            return
        try:
            async with client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._changed()
        except Exception as error:
            self._log.say(f"(changes of its tools are not told: {one_line(str(_leaf(error)), 200)})")
        self.deaf = True

    async def _message(self, message: ServerNotification | Exception) -> None:
        try:
            self._flood.message()
        except ProtocolViolation as error:
            self._ending.end(str(error))
        if isinstance(message, ToolListChangedNotification):
            self._changed()

    async def _on_log(self, params: LoggingMessageNotificationParams) -> None:
        self._log.say(f"({params.level}) {one_line(str(params.data), 1_000)}")

    async def _roots(self, context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[_root(path) for path in self._endpoint.roots])

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Ask through the newest call: the protocol does not always say which call a question belongs to."""
        asker = self._askers[-1] if self._askers else None
        answer = DECLINED if asker is None else await asker(_question_of(params))
        content = answer.content if isinstance(params, ElicitRequestFormParams) else None
        return ElicitResult.model_validate({"action": answer.action, "content": content})

    def _living(self) -> Client:
        if self._client is None or not self.alive:
            raise Broken(self._ending.reason or "it is not open", sent=False)
        return self._client

    async def _pages(self) -> AsyncIterator[Tool]:
        cursor: str | None = None
        count = 0
        for _ in range(MOST_PAGES):
            page = await self._living().list_tools(cursor=cursor)
            for tool in page.tools[: MOST_LISTED - count]:
                yield tool
            count += len(page.tools)
            if (cursor := page.next_cursor) is None or count >= MOST_LISTED:
                return

    # Errors

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Convert the SDK's exceptions to one of the three failures of a call."""
        try:
            yield
        except (Broken, McpRefused, Unusable):
            raise
        except MCPError as error:
            if self._ending.came or _is_end(error):
                raise Broken(error.message, sent=True) from None
            if self._session_is_gone(error):
                self._ending.end(f"the server forgot the session ({self._statuses})")
                raise Broken(error.message, sent=False) from None
            raise (Unusable if self._is_no_answer(error) else McpRefused)(self._words(error)) from None
        except Exception as error:
            raise Unusable(one_line(str(_leaf(error)) or type(error).__name__, 500)) from None

    def _session_is_gone(self, error: MCPError) -> bool:
        """Return whether the server does not know the session, as after a restart; that does not answer the
        call."""
        if self._client is None or self._client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return False
        unsaid = error.message == "Server returned an error response" or "session" in error.message.lower()
        return self._statuses.code == 404 or (self._statuses.code == 400 and unsaid)

    def _is_no_answer(self, error: MCPError) -> bool:
        """Return whether the server, or a proxy before it, returned something that cannot be an answer."""
        by_the_sdk = error.code == PARSE_ERROR or error.message.startswith("Unexpected content type")
        return by_the_sdk or self._statuses.code >= 500

    async def _reason(self, otherwise: str) -> str:
        """Return why the connection ended; mark it as ended, whatever the transport reports."""
        try:
            async with asyncio.timeout(_NOTICED):
                return await self._ending.wait()
        except TimeoutError:
            self._ending.end(otherwise)
            return otherwise

    def _words(self, error: BaseException) -> str:
        text = one_line(str(error), 500)
        status = str(self._statuses)
        if isinstance(error, MCPError):
            return f"{text} ({status})" if status else text
        if isinstance(error, (OSError, ProtocolViolation, *NOT_SENT)):
            return text or type(error).__name__
        return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_end(error: MCPError) -> bool:
    """Return whether the SDK made this error because no answer can come. Servers use the same code for their
    own errors."""
    return error.code == CONNECTION_CLOSED and error.message.startswith(("Connection closed", "SSE stream"))


def _leaf(error: BaseException) -> BaseException:
    """Return the first error inside nested groups."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _question_of(params: ElicitRequestParams) -> ServerQuestion:
    if isinstance(params, ElicitRequestURLParams):
        return ServerQuestion(params.message, url=params.url)
    return ServerQuestion(params.message, params.requested_schema)


async def _pages_opened(error: MCPError, asker: Asker) -> bool:
    """Return whether the server refused a call until pages are opened, and the user opened them all."""
    if error.code != URL_ELICITATION_REQUIRED:
        return False
    wanted = UrlElicitationRequiredError.from_error(error.error).elicitations
    for params in wanted:
        if (await asker(_question_of(params))).action != "accept":
            return False
    return bool(wanted)


def _root(path: Path) -> Root:
    return Root.model_validate({"uri": path.as_uri(), "name": path.name or str(path)})


def _list_all(tool: Tool) -> Listed:
    hints = tool.annotations
    return Listed(
        tool.name,
        tool.description or tool.title or "",
        tool.input_schema,
        hints.read_only_hint if hints else None,
        hints.idempotent_hint if hints else None,
    )
