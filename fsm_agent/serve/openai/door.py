"""Handlers for OpenAI's wires: responses, chat completions, models.

A response is a turn: its id names the turn, and so its session. The handlers translate what the service
returns to the wire, and decide nothing."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from openai import BaseModel
from openai.types import Model
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fsm_agent.conversation.result import Outcome, TurnResult
from fsm_agent.dispatch.follow import ServedEvent
from fsm_agent.dispatch.service import Busy, Caller, NotFound, ServiceError, SessionService
from fsm_agent.errors import ConfigError, TurnSuspended
from fsm_agent.serve.doors import Door
from fsm_agent.serve.openai import (
    EVENTS_HEADER,
    FIELD,
    IGNORED_HEADER,
    SESSION_HEADER,
    facts_of_result,
    facts_of_wait,
    headers_of,
)
from fsm_agent.serve.openai.chat import ChatTranslator, CompletionHead, completion_of, waiting_completion
from fsm_agent.serve.openai.requests import Asked, InvalidRequest, read_completion, read_response
from fsm_agent.serve.openai.responses import (
    ResponseHead,
    ResponseTranslator,
    error_of,
    turn_of,
)
from fsm_agent.serve.web import EventStream, Sse, caller_of, json_body, route
from fsm_agent.sessions.store.kept_values import OF_TURNS, KeptValues
from fsm_agent.sessions.store.pending import Pending

DONE = Sse("[DONE]")
LAST = frozenset(("response.completed", "response.incomplete", "response.failed"))
"""Types of the last event of a stream."""
HEADS = f"serve.openai{OF_TURNS}"
"""The name under which the store keeps the ``ResponseHead`` of each turn."""
NUMBERED = 10_000
"""Maximum streams whose numbering is remembered, for clients that reconnect."""
TYPES: Mapping[int, str] = {
    401: "authentication_error", 403: "permission_error", 409: "conflict_error", 429: "rate_limit_error",
}  # fmt: skip
"""The wire's error types by status; other client errors are ``invalid_request_error``."""
STATUSES_OF_FAILURES: Mapping[str, int] = {
    "invalid_prompt": 400, "rate_limit_exceeded": 429, "server_error": 500,
}  # fmt: skip
"""HTTP status of a chat completion whose turn failed, by error code."""


class UnknownModel(InvalidRequest):
    """A model that is not served here."""

    status = 404


class Translator(Protocol):
    """Translates the events of a turn to a wire."""

    def begin(self) -> list[BaseModel]:
        """Return the beginning of the stream."""
        ...

    def hear(self, served: ServedEvent) -> list[BaseModel]:
        """Return what to send for an event of the turn."""
        ...

    def end(self, result: TurnResult[Any]) -> list[BaseModel]:
        """Return the end of the stream of a turn that has ended."""
        ...

    def wait(self, pending: Sequence[Pending]) -> list[BaseModel]:
        """Return the end of the stream of a turn that is suspended."""
        ...


def error_response(error: ServiceError) -> Response:
    """Answer with an error in the form of the wire."""
    headers = {"retry-after": "1"} if error.status in (429, 503) else {}
    return JSONResponse(error_body(error), error.status, headers)


def error_body(error: ServiceError) -> dict[str, Any]:
    """Return the body of an error in the form of the wire."""
    other = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": str(error), "type": TYPES.get(error.status, other),
            "param": getattr(error, "param", None), "code": error.code,
        }
    }  # fmt: skip


class OpenAiDoor(Door):
    """Responses, chat completions, and models."""

    name = "openai"

    def routes(self, service: SessionService) -> Sequence[Route]:
        self._service, self._heads = service, KeptValues(service.store, HEADS)
        self._numbered: dict[tuple[str, bool], int] = {}
        return [
            route("/v1/responses", self.create_response, ("POST",), error_response),
            route("/v1/responses/{id}", self.retrieve_response, ("GET",), error_response),
            route("/v1/responses/{id}/cancel", self.cancel_response, ("POST",), error_response),
            route("/v1/chat/completions", self.create_completion, ("POST",), error_response),
            route("/v1/models", self.list_models, ("GET",), error_response),
            route("/v1/models/{id}", self.retrieve_model, ("GET",), error_response),
        ]

    # Responses

    async def create_response(self, request: Request) -> Response:
        """POST /v1/responses"""
        caller = caller_of(request)
        asked = read_response(await json_body(request))
        self._check_model(asked.model)
        if asked.previous is None:
            session, turn = _names(caller, request)
            return await self._begin(request, caller, asked, session, turn)
        previous = self._turn(asked.previous)
        about = self._service.about(caller, previous)
        if about["status"] == "suspended" or (about["status"] == "running" and not asked.content):
            return await self._continue(request, caller, asked, previous, about["status"])
        if about["status"] != "ended":
            raise Busy(f"the response {asked.previous} is not finished")
        result = await self._service.result(caller, previous)
        if not asked.content:
            raise InvalidRequest(
                "the response is finished, and the input has no message of the user",
                "input",
                "missing_message",
            )
        session, turn = about["session"], f"{about['session']}-{uuid.uuid4().hex[:8]}"
        turns = self._service.load(caller, session)["turns"]
        if not turns or turns[-1]["turn"] != result.turn_id:
            asked.history = result.messages  # the conversation has continued since: this is another one
            session, turn = _names(caller, request)
        return await self._begin(request, caller, asked, session, turn)

    async def _begin(
        self, request: Request, caller: Caller, asked: Asked, session: str, turn: str
    ) -> Response:
        turn = await self._service.start(caller, asked.message, session, turn_id=turn, **_options(asked))
        if self._heads.get(turn) is not None:  # a repeated request, by its idempotency key
            return await self._respond(request, caller, asked, self._translator(caller, turn, request))
        head = ResponseHead(
            turn, session, time.time(), asked.model, asked.previous, asked.instructions or None,
            asked.metadata, asked.format, asked.background, asked.thoughts,
        )  # fmt: skip
        await self._heads.put(turn, asdict(head))
        return await self._respond(request, caller, asked, self._translator(caller, turn, request, head))

    async def _continue(
        self, request: Request, caller: Caller, asked: Asked, turn: str, status: str
    ) -> Response:
        """Continue a turn that waits, with the answers of this request or after others."""
        translator, last = self._translator(caller, turn, request), ""
        if status == "suspended":
            async for served in self._service.events(caller, turn):
                translator.hear(served)
                last = served.id
            pending = self._service.pending(caller, turn)
            translator.wait(pending)
            for item, value in answers(asked, pending):
                await self._service.answer(caller, item.id, value)
        if not self._service.pending(caller, turn):
            await self._service.resume(caller, turn)
            translator.go_on()
        return await self._respond(request, caller, asked, translator, last)

    async def _respond(
        self, request: Request, caller: Caller, asked: Asked, translator: ResponseTranslator, after: str = ""
    ) -> Response:
        known = headers_of(
            {"turn": translator.head.turn, "session": translator.head.session}
        ) | _ignored_header(asked)
        if asked.stream:
            stream = self._response_stream(caller, translator, after)
            return _with(EventStream(stream, _stream_error), known)
        if not asked.background:
            async for _ in self._happening(caller, translator, translator.head.turn, after):
                pass
        return _response(translator, known)

    async def retrieve_response(self, request: Request) -> Response:
        """GET /v1/responses/{id}"""
        caller, turn = caller_of(request), self._turn(request.path_params["id"])
        about = self._service.about(caller, turn)
        translator = self._translator(caller, turn, request)
        known = headers_of({"turn": turn, "session": about["session"]})
        if request.query_params.get("stream") == "true":
            behind = request.query_params.get("starting_after", "-1")
            if not behind.removeprefix("-").isdecimal() or len(behind) > 15:
                raise InvalidRequest("starting_after is not a number of an event", "starting_after")
            stream = self._response_stream(caller, translator, "", int(behind))
            return _with(EventStream(stream, _stream_error), known)
        if about["status"] not in ("queued", "running"):
            async for _ in self._happening(caller, translator, turn, ""):
                pass
        return _response(translator, known)

    async def cancel_response(self, request: Request) -> Response:
        """POST /v1/responses/{id}/cancel"""
        caller, turn = caller_of(request), self._turn(request.path_params["id"])
        await self._service.interrupt(caller, turn)
        translator = self._translator(caller, turn, request)
        async for _ in self._happening(caller, translator, turn, ""):
            pass
        return _response(translator, {})

    async def _response_stream(
        self, caller: Caller, translator: ResponseTranslator, after: str, behind: int = -1
    ) -> AsyncIterator[Sse]:
        """Yield the events of a response. ``behind``: the number of the last one that the client has. If its
        numbers no longer hold, because another process reported the turn, the stream starts over."""
        key, held = (translator.head.turn, translator.extras), list[Any]()
        undecided = behind >= 0
        async for one in self._happening(caller, translator, translator.head.turn, after, begins=True):
            if behind < 0 and translator.attempt:
                self._numbered.setdefault(key, translator.attempt)
            held.append(one)
            if undecided and translator.attempt is None and one.type not in LAST:
                continue
            if undecided:
                undecided = False
                behind = (
                    behind if translator.attempt and self._numbered.get(key) == translator.attempt else -1
                )
            for early in held:
                if early.sequence_number > behind:
                    yield _sse(early)
            held.clear()
        while len(self._numbered) > NUMBERED:
            self._numbered.pop(next(iter(self._numbered)))

    async def _happening(
        self, caller: Caller, translator: Translator, turn: str, after: str, *, begins: bool = False
    ) -> AsyncIterator[Any]:
        """Yield everything to send for a turn, to its end."""
        if begins:
            for one in translator.begin():
                yield one
        async for served in self._service.events(caller, turn, after):
            for one in translator.hear(served):
                yield one
        try:
            ending = translator.end(await self._service.result(caller, turn))
        except TurnSuspended as waits:
            ending = translator.wait(waits.pending)
        except ConfigError as error:
            if not isinstance(translator, ResponseTranslator):
                raise
            ending = translator.give_up(str(error))
        for one in ending:
            yield one

    # Chat completions

    async def create_completion(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        caller = caller_of(request)
        asked = read_completion(await json_body(request))
        self._check_model(asked.model)
        session, turn = _names(caller, request)
        if named := request.headers.get(SESSION_HEADER):
            session, turn = named, f"{named}-{turn.rpartition('-')[2]}"
        turn = await self._service.start(caller, asked.message, session, turn_id=turn, **_options(asked))
        head = CompletionHead(turn, session, int(time.time()), asked.model, asked.schema is not None)
        known = headers_of({"turn": turn, "session": session}) | _ignored_header(asked)
        if asked.stream:
            extras = EVENTS_HEADER in request.headers
            translator = ChatTranslator(head, usage=asked.usage, extras=extras)
            return _with(EventStream(self._chat_stream(caller, translator), _stream_error), known)
        try:
            result = await self._service.result(caller, turn)
        except TurnSuspended as waits:
            known |= headers_of(facts_of_wait(turn, session, waits.pending))
            return _with(_json(waiting_completion(head, waits.pending)), known)
        known |= headers_of(facts_of_result(result))
        if result.turn_exit_reason.outcome is not Outcome.FAILED:
            return _with(_json(completion_of(head, result)), known)
        body = _failure(result)
        status = STATUSES_OF_FAILURES[body["error"]["code"]]
        return _with(JSONResponse(body, status), known | {"x-should-retry": "false"})

    async def _chat_stream(self, caller: Caller, translator: ChatTranslator) -> AsyncIterator[Sse]:
        async for one in self._happening(caller, translator, translator.head.turn, "", begins=True):
            yield Sse(_text(one))
        if translator.failed is not None:
            yield Sse(_failure(translator.failed))
        yield DONE

    # Models

    async def list_models(self, request: Request) -> Response:
        """GET /v1/models"""
        caller_of(request).need("read")
        return JSONResponse({"object": "list", "data": [self._model().model_dump()]})

    async def retrieve_model(self, request: Request) -> Response:
        """GET /v1/models/{id}"""
        caller_of(request).need("read")
        self._check_model(request.path_params["id"])
        return _json(self._model())

    def _model(self) -> Model:
        return Model(id=self._service.name, object="model", created=0, owned_by=FIELD)

    def _check_model(self, name: str) -> None:
        if name != self._service.name:
            raise UnknownModel(
                f"there is no model {name[:80]!r} here; allowed: {self._service.name}",
                "model",
                "model_not_found",
            )

    # Turns

    def _turn(self, identifier: str) -> str:
        if not (turn := turn_of(identifier)):
            raise NotFound(f"no such response: {identifier[:80]!r}")
        return turn

    def _translator(
        self, caller: Caller, turn: str, request: Request, head: ResponseHead | None = None
    ) -> ResponseTranslator:
        if head is None:
            about, kept = self._service.about(caller, turn), self._heads.get(turn)
            began = about.get("began") or time.time()
            head = (
                ResponseHead(turn, about["session"], began, self._service.name)
                if kept is None
                else ResponseHead(**kept)
            )

        def arguments(call_id: str) -> str:
            rows = self._service.load(caller, head.session)["messages"]
            calls = [call for row in rows for call in row.get("tool_calls") or ()]
            return next(
                (one["function"]["arguments"] for one in reversed(calls) if one["id"] == call_id), "{}"
            )

        return ResponseTranslator(head, arguments, extras=EVENTS_HEADER in request.headers)


def answers(asked: Asked, pending: Sequence[Pending]) -> list[tuple[Pending, Any]]:
    """Return the pending items that a request answers, each with the value for the service. A text answers
    the one pending question. Raises ``InvalidRequest``."""
    found = list[tuple[Pending, Any]]()
    for number, approval in enumerate(asked.approvals):
        items = [one for one in pending if one.id == approval.pending and one.kind == "approval"]
        if not items:
            raise InvalidRequest(
                f"no request for an approval of the id {approval.pending[:40]!r} waits", f"input[{number}]"
            )
        found.append((items[0], "once" if approval.approve else "deny"))
    if asked.content:
        questions = [one for one in pending if one.kind == "question"]
        if len(questions) != 1 or not isinstance(asked.message, str):
            waits = ", ".join(f"{one.id} ({one.what})" for one in pending)
            raise InvalidRequest(
                f"the response waits for {waits}; allowed: an mcp_approval_response for each approval, a text"
                " for a question",
                "input",
            )
        found.append((questions[0], asked.message))
    return found


def _names(caller: Caller, request: Request) -> tuple[str, str]:
    """Return a new session and turn; with an idempotency key always the same ones."""
    if key := request.headers.get("idempotency-key"):
        id = hashlib.sha256(f"{caller.id}\0{key}".encode("utf-8", "replace")).hexdigest()
    else:
        id = uuid.uuid4().hex
    session = f"s-{id[:12]}"
    return session, f"{session}-{id[12:20]}"


def _options(asked: Asked) -> dict[str, Any]:
    given = {
        "conversation_history": asked.history,
        "ephemeral_prompt": asked.instructions or None,
        "output_schema": asked.schema,
    }
    return {name: value for name, value in given.items() if value is not None}


def _ignored_header(asked: Asked) -> dict[str, str]:
    return {IGNORED_HEADER: ", ".join(sorted(asked.ignored))} if asked.ignored else {}


def _failure(result: TurnResult[Any]) -> dict[str, Any]:
    error = error_of(result)
    kind = "invalid_request_error" if error.code == "invalid_prompt" else "server_error"
    fields = {"message": error.message, "type": kind, "param": None, "code": error.code}
    return {"error": fields, FIELD: facts_of_result(result)}


def _response(translator: ResponseTranslator, known: Mapping[str, str]) -> Response:
    facts = translator.facts
    return _with(_json(translator.response), {**known, **headers_of(facts)})


def _json(model: BaseModel) -> Response:
    return Response(_text(model), media_type="application/json")


def _text(model: BaseModel) -> str:
    return model.model_dump_json(by_alias=True, exclude_unset=True)


def _sse(event: Any) -> Sse:
    return Sse(_text(event), event=event.type)


def _stream_error(error: ServiceError) -> Sequence[Sse]:
    return [Sse(error_body(error), event="error")]


def _with(response: Response, headers: Mapping[str, str]) -> Response:
    response.headers.update(headers)
    return response
