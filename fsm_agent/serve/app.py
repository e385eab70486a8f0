"""The web application: our own endpoints under ``/api``, the doors, and the guard in front of all of them."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_jsonable_python
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fsm_agent.conversation.result import TurnResult
from fsm_agent.dispatch.follow import ServedEvent
from fsm_agent.dispatch.service import BadRequest, Caller, NotFound, ServiceError, SessionService
from fsm_agent.errors import TurnSuspended
from fsm_agent.serve.doors import Door, doors_of, routes_of
from fsm_agent.serve.guard import Guard, GuardLimits
from fsm_agent.serve.keys import KeyRing
from fsm_agent.serve.web import (
    EventStream,
    Sse,
    caller_of,
    error_body,
    error_response,
    json_body,
    last_event_id,
    route,
)
from fsm_agent.sessions.store.kept_values import KeptValues
from fsm_agent.support import __version__
from fsm_agent.support.texts import one_line

PUBLIC = ("/health", "/openapi.json")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StartTurn(_Body):
    """A message of a user. ``turn_id``: sent again with the same one, it begins nothing. ``waits``: behind a
    turn of the session that runs."""

    content: str | list[dict[str, Any]]
    turn_id: str = ""
    waits: bool = False
    system_message: str | None = None
    ephemeral_prompt: str | None = None


class Steer(_Body):
    """What to tell the running turn."""

    text: str


class Interrupt(_Body):
    """Why it is to stop, for the model."""

    message: str | None = None


class Answer(_Body):
    """The answer to what a turn waits for; ``pattern`` for similar calls."""

    value: Any = None
    pattern: str = ""


class ForkTurn(_Body):
    """Where a turn is forked, after how many moves, and what is changed there."""

    at: int
    edit: dict[str, Any] = {}


Reply = dict[str, Any] | Response


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint: its address, summary, and code. ``work`` receives the service, the caller, the request
    and the body."""

    method: str
    path: str
    summary: str
    scope: str
    work: Callable[..., Awaitable[Reply] | Reply]
    body: type[_Body] | None = None
    status: int = 200


async def _start(service: SessionService, caller: Caller, request: Request, body: StartTurn) -> Reply:
    options = {
        name: given
        for name in ("system_message", "ephemeral_prompt")
        if (given := getattr(body, name)) is not None
    }
    turn = await service.start(
        caller, body.content, request.path_params.get("session"),
        turn_id=body.turn_id, waits=body.waits, **options,
    )  # fmt: skip
    about = service.about(caller, turn)
    return {**about, "events": f"/api/turns/{turn}/events", "result": f"/api/turns/{turn}/result"}


def _about(service: SessionService, caller: Caller, request: Request, body: None) -> Reply:
    return service.about(caller, request.path_params["turn"])


def _events(service: SessionService, caller: Caller, request: Request, body: None) -> Reply:
    turn = request.path_params["turn"]
    events = service.events(caller, turn, last_event_id(request))
    return EventStream(
        _stream_turn(service, caller, turn, events),
        lambda error: [Sse(error_body(error), event="error")],
    )


async def _stream_turn(
    service: SessionService, caller: Caller, turn: str, events: AsyncIterator[ServedEvent]
) -> AsyncIterator[Sse]:
    async for one in events:
        yield sse_of(one)
    yield Sse(await _outcome(service, caller, turn), event="end")


def sse_of(one: ServedEvent) -> Sse:
    """Return an event of a turn in the form of our own stream."""
    values = to_jsonable_python(one.event.values._asdict(), fallback=str)
    data = {"turn": one.turn, "event": one.event.name, "at": one.event.at, "values": values}
    return Sse(data, one.id, one.event.name)


async def _outcome(service: SessionService, caller: Caller, turn: str) -> dict[str, Any]:
    try:
        return result_of(await service.result(caller, turn))
    except TurnSuspended as waits:
        return {
            "status": "suspended",
            "turn": waits.turn_id,
            "pending": [one.to_dict() for one in waits.pending],
        }


def result_of(result: TurnResult) -> dict[str, Any]:
    """Return a result as JSON values, without the transcript."""
    whole = result.model_dump(mode="json", exclude={"messages", "states"}, fallback=str)
    return {"status": "ended", "turn": result.turn_id, **whole}


async def _result(service: SessionService, caller: Caller, request: Request, body: None) -> Reply:
    return await _outcome(service, caller, request.path_params["turn"])


async def _steer(service: SessionService, caller: Caller, request: Request, body: Steer) -> Reply:
    await service.steer(caller, request.path_params["turn"], body.text)
    return service.about(caller, request.path_params["turn"])


async def _interrupt(service: SessionService, caller: Caller, request: Request, body: Interrupt) -> Reply:
    await service.interrupt(caller, request.path_params["turn"], body.message)
    return service.about(caller, request.path_params["turn"])


async def _resume(service: SessionService, caller: Caller, request: Request, body: None) -> Reply:
    await service.resume(caller, request.path_params["turn"])
    return service.about(caller, request.path_params["turn"])


async def _fork(service: SessionService, caller: Caller, request: Request, body: ForkTurn) -> Reply:
    turn = await service.fork(caller, request.path_params["turn"], body.at, body.edit)
    return service.about(caller, turn)


def _pending(service: SessionService, caller: Caller, request: Request, body: None) -> Reply:
    return {"pending": [one.to_dict() for one in service.pending(caller)]}


async def _answer(service: SessionService, caller: Caller, request: Request, body: Answer) -> Reply:
    item = await service.answer(caller, request.path_params["item"], body.value, pattern=body.pattern)
    return item.to_dict()


def _sessions(service: SessionService, caller: Caller, request: Request, body: None) -> Reply:
    most = request.query_params.get("limit", "100")
    if not (most.isascii() and most.isdigit() and 0 < int(most) <= 1000):
        raise BadRequest("limit is a number from 1 to 1000")
    return {"sessions": service.sessions(caller, int(most))}


def _session(service: SessionService, caller: Caller, request: Request, body: None) -> Reply:
    return service.load(caller, request.path_params["session"])


_TURN = "/api/turns/{turn}"
OPERATIONS: Sequence[Operation] = (
    Operation("POST", "/api/turns", "Begin a turn in a new session", "run", _start, StartTurn, 202),
    Operation(
        "POST", "/api/sessions/{session}/turns", "Begin a turn in a session", "run", _start, StartTurn, 202
    ),
    Operation("GET", "/api/sessions", "List the sessions of this key", "read", _sessions),
    Operation("GET", "/api/sessions/{session}", "Read a session: its messages and turns", "read", _session),
    Operation("GET", _TURN, "Read the status of a turn", "read", _about),
    Operation("GET", f"{_TURN}/events", "Follow a turn from any event on (SSE)", "read", _events),
    Operation("GET", f"{_TURN}/result", "Wait for the result of a turn", "read", _result),
    Operation("POST", f"{_TURN}/steer", "Tell a running turn something", "run", _steer, Steer),
    Operation("POST", f"{_TURN}/interrupt", "Stop a turn", "run", _interrupt, Interrupt),
    Operation("POST", f"{_TURN}/resume", "Continue an unfinished turn", "run", _resume, None, 202),
    Operation("POST", f"{_TURN}/fork", "Begin a turn where another one was", "run", _fork, ForkTurn, 202),
    Operation("GET", "/api/pending", "List what suspended turns wait for", "read", _pending),
    Operation(
        "POST", "/api/pending/{item}", "Answer what a turn waits for; an approval needs the scope approve",
        "run", _answer, Answer,
    ),
)  # fmt: skip


def _handler(service: SessionService, one: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        caller, body = caller_of(request), None
        if one.method == "POST":
            given = await json_body(request)
            body = None if one.body is None else _validate(one.body, given)
        done = one.work(service, caller, request, body)
        reply = await done if inspect.isawaitable(done) else done
        return reply if isinstance(reply, Response) else JSONResponse(reply, one.status)

    return handle


def _validate(kind: type[_Body], given: dict[str, Any]) -> _Body:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise BadRequest(one_line(f"{where}: {first['msg']}", 200)) from None


def openapi() -> dict[str, Any]:
    """Describe our own endpoints in OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR}
    for one in OPERATIONS:
        names = [part[1:-1] for part in one.path.split("/") if part.startswith("{")]
        kind = "text/event-stream" if one.path.endswith("/events") else "application/json"
        about: dict[str, Any] = {
            "summary": one.summary,
            "description": f"Needs the scope `{one.scope}`.",
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ],
            "responses": {
                str(one.status): {"description": one.summary, "content": {kind: {"schema": {}}}},
                "default": {
                    "description": "An error",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                },
            },
        }
        if one.body is not None:
            name = one.body.__name__
            schemas[name] = one.body.model_json_schema()
            reference = {"$ref": f"#/components/schemas/{name}"}
            about["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
        paths.setdefault(one.path, {})[one.method.lower()] = about
    return {
        "openapi": "3.1.0",
        "info": {"title": "fsm-agent", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "code"],
            "properties": {"message": {"type": "string"}, "code": {"type": "string"}},
        }
    },
}


def app_of(
    service: SessionService,
    keys: KeyRing,
    *,
    hosts: Collection[str] | None = None,
    cors: Collection[str] = (),
    limits: GuardLimits = GuardLimits(),  # noqa: B008 - it is frozen
    doors: Sequence[Door] | None = None,
) -> Starlette:
    """Return the application of one service. ``hosts``: allowed values of ``Host``, ``None`` for any.
    ``cors``: origins of other sites whose pages may send requests. ``doors``: by default those of this
    package whose libraries are installed."""
    if doors is None:
        doors = doors_of({}, KeptValues(service.store)).open
    routes = [route(one.path, _handler(service, one), [one.method]) for one in OPERATIONS]
    routes += routes_of(doors, service)
    public = [*PUBLIC, *(path for door in doors for path in door.public)]
    names = [door.name for door in doors]
    described = openapi()

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "leaving" if service.leaving else "ok", "doors": names})

    async def document(request: Request) -> Response:
        return JSONResponse(described)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(service)
            for door in doors:
                stack.push_async_callback(door.aclose)
                await stack.enter_async_context(door.running())
            yield

    return Starlette(
        routes=[*routes, Route("/health", health), Route("/openapi.json", document)],
        middleware=[Middleware(Guard, keys=keys, hosts=hosts, cors=cors, public=public, limits=limits)],
        exception_handlers={HTTPException: _answer_unrouted},
        lifespan=lifespan,
    )


def _answer_unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(NotFound("no such address"))
    refused = ServiceError(str(error.detail))
    refused.status, refused.code = error.status_code, "refused"
    answered = error_response(refused)
    answered.headers.update(error.headers or {})
    return answered
