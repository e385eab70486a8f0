"""The agent as an MCP server: the tool ``ask``, selected tools of the agent, the sessions of a key as
resources (``session://ID``, the transcript as JSON), and the skills of the agent as prompts.

Each call is a turn of the service. Its moves become progress notifications; its questions go to the client
(elicitation), if the client's key may approve. In the protocol of 2025 a call may also be a task, whose id is
the turn's. Nothing that a client sends decides what may run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from jsonschema import Draft202012Validator
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    AudioContent,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    CancelTaskRequestParams,
    ClientCapabilities,
    ContentBlock,
    ElicitationCapability,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    GetPromptRequestParams,
    GetPromptResult,
    GetTaskPayloadRequestParams,
    GetTaskRequestParams,
    ImageContent,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    ServerCapabilities,
    ServerTasksCapability,
    Task,
    TaskStatus,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
    ToolExecution,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from fsm_agent.conversation.effects import ToolSpec
from fsm_agent.conversation.parts import data_of, kind_of, name_part
from fsm_agent.conversation.result import TurnResult
from fsm_agent.dispatch.service import (
    LASTING,
    LOCAL,
    BadRequest,
    Caller,
    Forbidden,
    NotFound,
    ServiceError,
    SessionService,
)
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.runtime.events import ToolComplete, ToolStart, Transition
from fsm_agent.serve.called_tools import PREFIX, message_of, new_call_id
from fsm_agent.serve.web import CALLER, service_error, to_json
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support import __version__
from fsm_agent.support.texts import one_line, shorten
from fsm_agent.tools import ToolFailure
from fsm_agent.toolsets.memory import SkillShelf

ASK = "ask"
TASKS = "2025-11-25"
"""The version of the protocol that has tasks in its core."""
POLL = 1_000
"""Milliseconds that a client should wait between two polls of a task."""
MAX_ASKED = 4_000
RELATED = "io.modelcontextprotocol/related-task"
DECLINED = "The person did not want to answer."
SCHEME = "session://"
JSON = "application/json"
TEMPLATES = ListResourceTemplatesResult(
    resource_templates=[
        ResourceTemplate(
            name="session",
            uri_template=f"{SCHEME}{{session}}",
            description="The messages and turns of a session of yours",
            mime_type=JSON,
        )
    ]
)
TASK = PromptArgument(name="task", description="What to use the skill for", required=False)

Context = ServerRequestContext[Any, Any]
Json = dict[str, Any]


def _object(required: Sequence[str], **properties: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


_TEXT = {"type": "string", "minLength": 1}
ASK_INPUT = _object(
    ["message"],
    message={**_TEXT, "description": "What the agent is asked or told to do"},
    session={**_TEXT, "description": "Of an earlier answer, to continue its conversation"},
)
ASK_OUTPUT = _object(["answer", "session", "turn"], answer={"type": "string"}, session=_TEXT, turn=_TEXT)
ASK_TOOL = Tool(
    name=ASK,
    title="Ask the agent",
    description=(
        "Give the agent a task or a question. It works on its own, with tools of its own, and answers when it"
        " is done. The answer names its session: pass it on to continue the conversation."
    ),
    input_schema=ASK_INPUT,
    output_schema=ASK_OUTPUT,
    execution=ToolExecution(task_support="optional"),
)


class AgentServer(Server[Any]):
    """Serves an agent. ``tools``: those of its tools that clients may call directly, by name; its turns must
    come from a factory of ``with_called_tools`` for them. ``shelf``: its skills."""

    def __init__(
        self,
        service: SessionService,
        tools: Mapping[str, ToolSpec] | None = None,
        shelf: SkillShelf | None = None,
    ) -> None:
        super().__init__(
            service.name,
            version=__version__,
            instructions=f"Use {ASK} to give the agent {service.name} a task.",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=None if shelf is None else self._list_prompts,
            on_get_prompt=None if shelf is None else self._get_prompt,
        )
        self._shelf = shelf
        self.service, self._tools = service, dict(tools or {})
        if ASK in self._tools:
            raise ConfigError("a served tool has the name of the agent's own", ASK, "another name")
        self._background: set[asyncio.Task[None]] = set()
        self.middleware.append(self._as_task)
        self.add_request_handler("tasks/get", GetTaskRequestParams, self._task)
        self.add_request_handler("tasks/result", GetTaskPayloadRequestParams, self._task_result)
        self.add_request_handler("tasks/cancel", CancelTaskRequestParams, self._cancel_task)

    def get_capabilities(self, *args: Any, **more: Any) -> ServerCapabilities:
        """Add tasks, which the protocol of 2026 no longer has."""
        found = super().get_capabilities(*args, **more)
        if more.get("protocol_version") in MODERN_PROTOCOL_VERSIONS:
            return found
        tasks = ServerTasksCapability.model_validate({"cancel": {}, "requests": {"tools": {"call": {}}}})
        return found.model_copy(update={"tasks": tasks})

    # Skills as prompts

    async def _list_prompts(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        with _refusals():
            shelf = self._shelf_for(context)
            prompts = [
                Prompt(name=one.name, description=one.description, arguments=[TASK]) for one in shelf.skills()
            ]
            return ListPromptsResult(prompts=prompts)

    async def _get_prompt(self, context: Context, params: GetPromptRequestParams) -> GetPromptResult:
        with _refusals():
            shelf, given = self._shelf_for(context), dict(params.arguments or {})
            task = given.pop(TASK.name, "")
            if given:
                raise BadRequest(f"a skill has no argument {min(given)[:40]!r}; allowed: {TASK.name}")
            try:
                words = shelf.skill_view(params.name)
            except ToolFailure as error:
                raise BadRequest(str(error)) from None
        content = TextContent(type="text", text=f"{words}\n\n{task}" if task else words)
        return GetPromptResult(messages=[PromptMessage(role="user", content=content)])

    def _shelf_for(self, context: Context) -> SkillShelf:
        _caller(context).need("read")
        assert self._shelf is not None
        return self._shelf

    # Tools

    async def _list(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[ASK_TOOL, *map(_describe, self._tools.values())])

    async def _call(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        caller = _caller(context)
        with _protocol_errors():
            try:
                turn = params.request_state or await self._begin(caller, params)
            except ServiceError as error:
                return _fail(str(error))
            try:
                return await self._finish(context, caller, turn, params.input_responses or {})
            except asyncio.CancelledError:
                if not self.service.leaving:  # else another process continues the turn
                    self._beside(self._interrupt(caller, turn))
                raise

    async def _begin(self, caller: Caller, params: CallToolRequestParams) -> str:
        """Begin the turn of a call; return its id. Raises ``ServiceError``, ``MCPError``."""
        arguments = params.arguments or {}
        if params.name == ASK:
            _check(arguments, ASK_INPUT)
            return await self.service.start(caller, arguments["message"], arguments.get("session"))
        if params.name not in self._tools:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {one_line(params.name, 80)}")
        return await self.service.start(caller, message_of(params.name, arguments), turn_id=new_call_id())

    # Sessions as resources

    async def _list_resources(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        with _refusals():
            sessions = self.service.sessions(_caller(context))  # most recently used first
            found = [
                Resource(
                    name=one["session"], title=one["title"] or None, uri=f"{SCHEME}{one['session']}",
                    mime_type=JSON,
                )
                for one in sessions
            ]  # fmt: skip
            return ListResourcesResult(resources=found)

    async def _list_templates(
        self, context: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        return TEMPLATES

    async def _read_resource(self, context: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        with _refusals():
            uri = str(params.uri)
            scheme, _, session = uri.partition("://")
            if f"{scheme}://" != SCHEME or not session:
                raise NotFound("no such resource")
            text = to_json(self.service.load(_caller(context), session))
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=JSON, text=text)])

    # Following a turn

    async def _finish(
        self, context: Context, caller: Caller, turn: str, given: Mapping[str, Any]
    ) -> CallToolResult | InputRequiredResult:
        """Follow a turn to its end, and pass its questions to the client. ``given``: the client's earlier
        answers, by the id of the pending item."""
        call, last, moves = _CalledTool(), "", itertools.count(1)
        try:
            while True:
                waiting = self.service.pending(caller, turn) if given else []
                await self._answer(caller, [(one, given[one.id]) for one in waiting if one.id in given])
                async for one in self.service.events(caller, turn, last):
                    last = one.id
                    call.hear(one.event.values)
                    await _report(context, one.event.values, moves)
                try:
                    result = await self.service.result(caller, turn)
                except TurnSuspended as waits:
                    if isinstance(asked := await self._ask(context, caller, turn, waits.pending), Mapping):
                        given = asked
                        continue
                    if _is_refused(caller, turn) and not isinstance(asked, InputRequiredResult):
                        await self._refuse(caller, turn)
                    return asked
                return call.result_of(result) if turn.startswith(PREFIX) else _answer_of(result)
        except ServiceError as error:
            return _fail(str(error))

    async def _answer(self, caller: Caller, answers: Collection[tuple[Pending, ElicitResult]]) -> None:
        for item, answer in answers:
            content = (answer.content or {}) if answer.action == "accept" else {}
            if item.kind == "question":
                value = str(content.get("answer") or DECLINED)
            else:
                value = str(content.get("decision"))
                value = value if value in _decisions(caller, item) else "deny"
            await self.service.answer(caller, item.id, value)

    async def _refuse(self, caller: Caller, turn: str) -> None:
        """Decline everything that a turn waits for, so that none of it runs later."""
        no = ElicitResult(action="decline")
        await self._answer(caller, [(one, no) for one in self.service.pending(caller, turn)])

    async def _ask(
        self, context: Context, caller: Caller, turn: str, pending: Sequence[Pending]
    ) -> Mapping[str, ElicitResult] | InputRequiredResult | CallToolResult:
        """Return the client's answers; or, in the protocol of 2026, the result that makes it ask; or why it
        cannot be asked."""
        if why := _why_not_asked(context, caller, turn, pending):
            return _fail(why)
        forms = {one.id: _form(caller, one) for one in pending}
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            requests = {name: ElicitRequest(params=form) for name, form in forms.items()}
            return InputRequiredResult(input_requests={**requests}, request_state=turn)
        return {
            name: await context.session.elicit_form(form.message, form.requested_schema, context.request_id)
            for name, form in forms.items()
        }

    async def _interrupt(self, caller: Caller, turn: str) -> None:
        with suppress(ServiceError):
            await self.service.interrupt(caller, turn, "The client canceled the request.")

    def _beside(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Turns as tasks

    async def _as_task(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer a call that requests a task with the task, and follow its turn in the background."""
        params = ctx.params or {}
        if ctx.method != "tools/call" or ctx.protocol_version != TASKS or "task" not in params:
            return await call_next(ctx)
        with _protocol_errors():
            call = CallToolRequestParams.model_validate(params, by_name=False)
            caller = _caller(ctx)
            try:
                turn = await self._begin(caller, call)
            except ServiceError as error:
                raise MCPError(code=INVALID_PARAMS, message=str(error)) from None
            if (token := (ctx.meta or {}).get("progress_token")) is not None:
                self._beside(self._tell_progress(ctx, caller, turn, token))
            return {"task": _task_json(self._state(caller, turn))}

    async def _tell_progress(self, context: Context, caller: Caller, turn: str, token: str | int) -> None:
        moves = itertools.count(1)
        with suppress(Exception):  # the client may have left; the turn continues
            async for one in self.service.events(caller, turn):
                if words := _words(one.event.values):
                    await context.session.send_progress_notification(token, next(moves), message=words)

    async def _task(self, context: Context, params: GetTaskRequestParams) -> Json:
        with _refusals():
            return _task_json(self._state(_caller(context), params.task_id))

    async def _task_result(self, context: Context, params: GetTaskPayloadRequestParams) -> Json:
        caller = _caller(context)
        with _refusals():
            self._state(caller, params.task_id)
            result = await self._finish(context, caller, params.task_id, {})
        return {**_dump(result), "_meta": {RELATED: {"taskId": params.task_id}}}

    async def _cancel_task(self, context: Context, params: CancelTaskRequestParams) -> Json:
        caller = _caller(context)
        with _refusals():
            before = self._state(caller, params.task_id)
            if before.status in ("completed", "failed", "cancelled"):
                raise MCPError(code=INVALID_PARAMS, message=f"the task has ended: {before.status}")
            if before.status == "input_required":
                await self._refuse(caller, params.task_id)
            await self.service.interrupt(caller, params.task_id)
        return _task_json(before.model_copy(update={"status": "cancelled"}))

    def _state(self, caller: Caller, turn: str) -> Task:
        about = self.service.about(caller, turn)
        now = datetime.now(UTC)
        began = about.get("began")
        return Task(
            task_id=turn,
            status=_task_status(about),
            status_message=about.get("problem") or about.get("state") or about["status"],
            created_at=(datetime.fromtimestamp(began, UTC) if began else now).isoformat(),
            last_updated_at=now.isoformat(),
            ttl=None,
            poll_interval=POLL,
        )


def _caller(context: Context) -> Caller:
    """Return the caller: the owner of the request's key, or the starter of this process."""
    if context.request is None:
        return LOCAL
    caller = context.request.scope.get(CALLER)
    if not isinstance(caller, Caller):
        raise MCPError(code=INVALID_PARAMS, message="a key is missing")
    return caller


def _check(arguments: Mapping[str, Any], schema: Json) -> None:
    error = next(iter(Draft202012Validator(schema).iter_errors(arguments)), None)
    if error is not None:
        where = ".".join(map(str, error.path))
        raise BadRequest(f"{f'{where}: ' if where else ''}{shorten(error.message, 300)}")


@contextmanager
def _protocol_errors() -> Iterator[None]:
    """Turn exceptions into protocol errors. A bug is logged, and its text is kept from the client."""
    try:
        yield
    except (MCPError, ValidationError):
        raise
    except Exception as error:
        raise MCPError(code=INTERNAL_ERROR, message=str(service_error(error))) from None


@contextmanager
def _refusals() -> Iterator[None]:
    with _protocol_errors():
        try:
            yield
        except ServiceError as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from None


# Results for the client.


def _describe(spec: ToolSpec) -> Tool:
    return Tool(
        name=spec.name,
        description=spec.description,
        input_schema={"type": "object", **spec.parameters},
        annotations=ToolAnnotations(
            read_only_hint=spec.effect == "pure", idempotent_hint=spec.effect in ("pure", "idempotent")
        ),
        execution=ToolExecution(task_support="optional"),
    )


def _words(values: Any) -> str:
    """Return the text of a progress notification for an event; empty for most."""
    match values:
        case Transition():
            return f"{values.source} → {values.dest}"
        case ToolStart():
            return f"runs {values.name}"
    return ""


async def _report(context: Context, values: Any, moves: Iterator[int]) -> None:
    if words := _words(values):
        await context.session.report_progress(next(moves), message=words)


def _answer_of(result: TurnResult) -> CallToolResult:
    answer = result.final_response or ""
    about = {"answer": answer, "session": result.session_id, "turn": result.turn_id}
    if result.failed or result.interrupted or not answer:
        why = result.error or answer or result.turn_exit_reason.value.replace("_", " ")
        return _fail(f"{one_line(why, 1_000)} (session {result.session_id}, turn {result.turn_id})")
    return CallToolResult(content=[TextContent(type="text", text=answer)], structured_content=about)


def _fail(why: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=why)], is_error=True)


class _CalledTool:
    """Records how the only call of a turn ended."""

    def __init__(self) -> None:
        self._status = "denied"  # if the call never begins

    def hear(self, values: Any) -> None:
        """Process an event of the turn."""
        if isinstance(values, ToolComplete):
            self._status = values.status

    def result_of(self, result: TurnResult) -> CallToolResult:
        """Return the tool's result, from the turn's messages."""
        rows = [row for row in result.messages if row["role"] == "tool"]
        if not rows:
            return _fail(one_line(result.error or result.final_response or "The tool was not run.", 1_000))
        content = rows[-1]["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return CallToolResult(content=[_block(part) for part in parts], is_error=self._status != "ok")


def _block(part: Mapping[str, Any]) -> ContentBlock:
    kind, (media_type, data) = kind_of(part), data_of(part)
    match kind:
        case "image" if data:
            return ImageContent(type="image", data=data, mime_type=media_type)
        case "audio" if data:
            return AudioContent(type="audio", data=data, mime_type=media_type)
        case "file" if data:
            contents = BlobResourceContents(uri="file:///result", blob=data, mime_type=media_type)
            return EmbeddedResource(type="resource", resource=contents)
    return TextContent(type="text", text=str(part.get("text") or name_part(part)))


# Pending items as forms.


def _decisions(caller: Caller, item: Pending) -> list[str]:
    return [one for one in item.choices if caller.admin or one not in LASTING]


def _form(caller: Caller, item: Pending) -> ElicitRequestFormParams:
    if item.kind == "question":
        offered = f" Offered: {', '.join(item.choices)}." if item.choices else ""
        schema = _object(
            ["answer"], answer={"type": "string", "title": "Answer", "description": offered.strip()}
        )
    else:
        decision = {"type": "string", "title": "Allow it?", "enum": _decisions(caller, item)}
        schema = _object(["decision"], decision=decision)
    return ElicitRequestFormParams(message=shorten(item.asked, MAX_ASKED), requested_schema=schema)


def _is_refused(caller: Caller, turn: str) -> bool:
    """Return whether an unanswered call is refused: that of a single tool, by a key that could have approved
    it. Other turns wait for a person with the scope."""
    return turn.startswith(PREFIX) and (caller.admin or "approve" in caller.scopes)


def _why_not_asked(context: Context, caller: Caller, turn: str, pending: Sequence[Pending]) -> str:
    """Return why the client cannot be asked; empty if it can."""
    waits = f"The turn {turn} waits for {', '.join(f'{one.what} ({one.id})' for one in pending)}"
    if _is_refused(caller, turn):
        waits = f"Refused: {', '.join(one.what for one in pending)} is needed"
    if any(one.kind not in ("approval", "question") for one in pending):
        return f"{waits}; it continues when that has arrived."
    try:
        if any(one.kind == "approval" for one in pending):
            caller.need("approve")
    except Forbidden as error:
        return f"{waits}, and {error}."
    form = ClientCapabilities(elicitation=ElicitationCapability())
    modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    declared = context.session.client_capabilities
    able = declared is not None and declared.elicitation is not None
    if not modern:
        able = context.session.check_client_capability(form) and context.session.can_send_request
    return "" if able else f"{waits}, and this client cannot be asked (it has no elicitation)."


# Tasks


def _task_status(about: Mapping[str, Any]) -> TaskStatus:
    match about["status"], about.get("outcome"):
        case "ended", "interrupted":
            return "cancelled"
        case "refused", _:
            return "cancelled" if "taken back" in about["problem"] else "failed"
        case "ended", "completed" | "partial":
            return "completed"
        case (("ended" | "refused"), _):
            return "failed"
        case "suspended", _:
            return "input_required"
    return "working"


def _dump(value: BaseModel) -> Json:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


def _task_json(task: Task) -> Json:
    return {**_dump(task), "ttl": None}  # kept as long as its session
