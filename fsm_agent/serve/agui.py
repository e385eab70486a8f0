"""The door of AG-UI: ``POST /agui`` runs the agent and answers with the events of the protocol. ``/`` is a
page that speaks it.

A thread is a session, and a run with a new message is a turn of the same id. A run with ``resume`` continues
the waiting turn. A run whose last message is not new joins: it sends the thread's current state and follows
the running turn."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ag_ui.core import (
    AgentCapabilities,
    BaseEvent,
    ExecutionCapabilities,
    HumanInTheLoopCapabilities,
    IdentityCapabilities,
    Message,
    MultiAgentCapabilities,
    ReasoningCapabilities,
    RunAgentInput,
    RunErrorEvent,
    StateCapabilities,
    ToolsCapabilities,
    TransportCapabilities,
    UserMessage,
)
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fsm_agent.composition.turn_wiring import TURN
from fsm_agent.debug.web.page import POLICY, Asset, assets, gather, map_of, tree
from fsm_agent.dispatch.service import BadRequest, Busy, Caller, NotFound, ServiceError, SessionService
from fsm_agent.errors import TurnSuspended
from fsm_agent.serve.agui_events import RunTranslator
from fsm_agent.serve.agui_messages import (
    Row,
    answer_of,
    content_of,
    instructions_of,
    messages_of,
    read_input,
    rows_before,
    rows_of,
    unseen,
)
from fsm_agent.serve.doors import Door
from fsm_agent.serve.web import EventStream, Sse, caller_of, json_body, route
from fsm_agent.sessions.store.pending import Pending
from fsm_agent.support import __version__

log = logging.getLogger(__name__)
VENDORED = "vendor/"
"""Files of the debugger's page that this page uses, too."""


class Interrupted(Busy):
    """The thread waits for answers, and the input has none or not all of them."""

    code = "interrupts_open"


@dataclass(slots=True)
class Run:
    """The outcome of a request: the turn to follow after the event ``after``, empty if nothing runs in the
    thread. ``snapshot``: the client receives all messages."""

    thread: str
    translator: RunTranslator
    turn: str = ""
    after: str = ""
    snapshot: bool = False


class AgUiDoor(Door):
    """AG-UI, and the page that speaks it."""

    name = "agui"
    public = ("/", "/page")

    def routes(self, service: SessionService) -> Sequence[Route]:
        self._service = service
        return [
            route("/agui", self.run, ["POST"], agui_error),
            route("/agui/about", self.about, ["GET"], agui_error),
            route("/agui/markdown", self.markdown, ["POST"], agui_error),
            Route("/", index, methods=["GET"]),
            Route("/page/{path:path}", asset, methods=["GET"]),
        ]

    async def run(self, request: Request) -> Response:
        """Run the agent, and stream its events."""
        caller, given = caller_of(request), read_input(await json_body(request))
        run = await self._begin_run(caller, given)
        return EventStream(self._stream(caller, run), lambda error: _fail(run, error))

    async def _begin_run(self, caller: Caller, given: RunAgentInput) -> Run:
        caller.need("run")
        known = self._load(caller, given.thread_id)
        rows: Sequence[Row] = [] if known is None else known["messages"]
        turns = [] if known is None else known["turns"]
        newest = turns[-1]["turn"] if turns else ""
        waits = self._service.pending(caller, newest) if newest else []
        if given.resume:
            return await self._resume_run(caller, given, rows, turns, waits)
        if self._is_turn(caller, given):
            return self._join_run(given, rows, turns, given.run_id)
        fresh, whole = unseen(given.messages, rows)
        if not fresh:
            if known is None:
                raise BadRequest("the last message is not the user's, and there is no such thread")
            return self._join_run(given, rows, turns, newest)
        if waits:
            asked = ", ".join(one.id for one in waits)
            raise Interrupted(f"this thread waits for an answer: resume with {asked}")
        return await self._start_run(caller, given, fresh, rows, whole)

    async def _start_run(
        self, caller: Caller, given: RunAgentInput, fresh: list[Message], rows: Sequence[Row], whole: bool
    ) -> Run:
        *before, last = fresh
        assert isinstance(last, UserMessage)
        options: dict[str, Any] = {}
        if prompt := instructions_of(given):
            options["ephemeral_prompt"] = prompt
        if before:
            options["conversation_history"] = [*rows, *rows_of(before)]
        turn = await self._service.start(
            caller, content_of(last), given.thread_id, turn_id=given.run_id, **options
        )
        messages = given.messages if whole else [*messages_of(rows, given.thread_id), last]
        return Run(given.thread_id, _translator(given, messages), turn, snapshot=not whole)

    def _join_run(
        self, given: RunAgentInput, rows: Sequence[Row], turns: Sequence[Mapping[str, Any]], turn: str
    ) -> Run:
        """Join the thread: its messages, and the newest turn from its beginning unless it has ended."""
        messages = messages_of(rows, given.thread_id)
        if turn and turn not in {one["turn"] for one in turns}:  # it is queued
            last = [one for one in given.messages[-1:] if isinstance(one, UserMessage)]
            return Run(given.thread_id, _translator(given, [*messages, *last]), turn, snapshot=True)
        if not turns or turns[-1]["turn"] != turn or turns[-1]["ended"] is not None:
            return Run(given.thread_id, _translator(given, messages), snapshot=True)
        messages = messages_of(rows_before(rows, turns[-1]["asked"] or ""), given.thread_id)
        return Run(given.thread_id, _translator(given, messages), turn, snapshot=True)

    async def _resume_run(
        self,
        caller: Caller,
        given: RunAgentInput,
        rows: Sequence[Row],
        turns: Sequence[Mapping[str, Any]],
        waits: Sequence[Pending],
    ) -> Run:
        entries = {one.interrupt_id: one for one in given.resume or ()}
        here = {one.id: one for one in waits}
        elsewhere = {one.id for one in self._service.pending(caller)} - {*here}
        for name in entries.keys() - here.keys():
            if name in elsewhere:
                raise BadRequest(f"{name} belongs to another thread")
            try:
                await self._service.answer(caller, name, None)
            except Busy:
                continue  # a repeated request, already answered
        if missing := here.keys() - entries.keys():
            raise Interrupted(f"the answers leave {', '.join(sorted(missing))} open")
        newest = turns[-1]["turn"] if turns else ""
        if not here:
            return self._join_run(given, rows, turns, newest)
        answers = {name: answer_of(entries[name], item.kind) for name, item in here.items()}
        before = messages_of(rows_before(rows, turns[-1]["asked"] or ""), given.thread_id)
        run = Run(given.thread_id, _translator(given, before), newest)
        async for one in self._service.events(caller, newest):
            [*run.translator.feed(one)]
            run.after = one.id
        [*run.translator.propose(waits, rows)]
        for name, value in answers.items():
            pattern = _pattern(entries[name].payload)
            await self._service.answer(caller, name, value, pattern=pattern)
        return run

    async def _stream(self, caller: Caller, run: Run) -> AsyncIterator[Sse]:
        translator = run.translator
        for event in translator.begin(snapshot=run.snapshot):
            yield sse_of(event)
        if not run.turn:
            for event in translator.finish():
                yield sse_of(event)
            return
        async for one in self._service.events(caller, run.turn, run.after):
            for event in translator.feed(one):
                yield sse_of(event)
        try:
            ending = translator.end(await self._service.result(caller, run.turn))
        except TurnSuspended as waits:
            loaded = self._service.load(caller, run.thread)
            ending = translator.suspend(waits.pending, loaded["messages"])
        for event in ending:
            yield sse_of(event)

    def _load(self, caller: Caller, thread: str) -> dict[str, Any] | None:
        try:
            return self._service.load(caller, thread)
        except (NotFound, ServiceError) as error:
            if isinstance(error, NotFound):
                return None
            raise

    def _is_turn(self, caller: Caller, given: RunAgentInput) -> bool:
        """Return whether this run was begun before: its client lost the connection and returns."""
        try:
            return bool(self._service.about(caller, given.run_id)["session"] == given.thread_id)
        except NotFound:
            return False

    # The page

    async def about(self, request: Request) -> Response:
        """Answer with the public facts about the agent, and the map of its turn."""
        caller_of(request).need("read")
        return JSONResponse({
            "name": self._service.name,
            "capabilities": capabilities(self._service.name).model_dump(mode="json", by_alias=True),
            "states": [*TURN.states],
            "final": TURN.final,
            "map": await run_in_threadpool(_map),
        })  # fmt: skip

    async def markdown(self, request: Request) -> Response:
        """Answer with the Markdown blocks of a text."""
        caller_of(request).need("read")
        text = (await json_body(request)).get("text")
        if not isinstance(text, str):
            raise BadRequest("the text is not a string")
        return JSONResponse({"blocks": await run_in_threadpool(tree, text)})


def capabilities(name: str) -> AgentCapabilities:
    """Return the protocol's capabilities that are supported here."""
    return AgentCapabilities(
        identity=IdentityCapabilities(name=name, type="fsm_agent", version=__version__),
        transport=TransportCapabilities(streaming=True, resumable=True),
        tools=ToolsCapabilities(supported=True, client_provided=False),
        state=StateCapabilities(snapshots=True, deltas=True, persistent_state=True),
        multi_agent=MultiAgentCapabilities(supported=True, delegation=True, handoffs=True),
        reasoning=ReasoningCapabilities(supported=True, streaming=True),
        execution=ExecutionCapabilities(sandboxed=None),
        human_in_the_loop=HumanInTheLoopCapabilities(
            supported=True, approvals=True, interrupts=True, approve_with_edits=False
        ),
    )


def sse_of(event: BaseEvent) -> Sse:
    """Encode an event for the stream."""
    return Sse(event.model_dump_json(by_alias=True))


def agui_error(error: ServiceError) -> Response:
    """Answer a request that begins no run with an error of the protocol."""
    event = RunErrorEvent(message=str(error), code=error.code)
    return JSONResponse(event.model_dump(mode="json", by_alias=True), error.status)


def _fail(run: Run, error: ServiceError) -> list[Sse]:
    return [sse_of(one) for one in run.translator.fail(str(error), error.code)]


def _translator(given: RunAgentInput, messages: Sequence[Message]) -> RunTranslator:
    wanted = given.forwarded_props
    reasoning = isinstance(wanted, Mapping) and wanted.get("reasoning") is True
    return RunTranslator(given.thread_id, given.run_id, messages, reasoning=reasoning)


def _pattern(payload: Any) -> str:
    given = payload.get("pattern") if isinstance(payload, Mapping) else None
    return given if isinstance(given, str) else ""


# ----------------------------------------------------------------------------------------------------
# The files of the page, which needs a key to request any part of a conversation.


@cache
def _map() -> str:
    return map_of(TURN)


@cache
def _assets() -> dict[str, Asset]:
    shared = {name: one for name, one in assets().items() if name.startswith(VENDORED)}
    return shared | gather(files("fsm_agent.serve") / "page")


async def index(request: Request) -> Response:
    """Answer with the page itself."""
    headers = {"content-security-policy": POLICY, "cache-control": "no-store"}
    return Response(_assets()["index.html"].body, 200, headers, "text/html")


async def asset(request: Request) -> Response:
    """Answer with a file of the page, or 304 if it has not changed."""
    found = _assets().get(request.path_params["path"])
    if found is None:
        return Response("No such file.\n", 404, media_type="text/plain")
    headers = {"etag": found.tag, "cache-control": "no-cache", "content-security-policy": POLICY}
    if request.headers.get("if-none-match") == found.tag:
        return Response(None, 304, headers)
    return Response(found.body, 200, {**headers, "content-type": found.type})
