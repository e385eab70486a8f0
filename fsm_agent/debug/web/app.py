"""The page's application: what it can be asked, and the answers. All work on turns is
``fsm_agent.debug``'s.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from fsm_agent.approvals.question import exact
from fsm_agent.approvals.service import answer as answer_to
from fsm_agent.backtest.predict import improbable_turns
from fsm_agent.debug.core.analysis import (
    Budgets,
    choices,
    columns,
    count_tools,
    moves_of_tool,
    noted_moves,
    waits_of,
)
from fsm_agent.debug.core.breakpoints import (
    Kind,
    MalformedArgument,
    number,
    numbers_of,
    outcome_of,
    targets_of,
    text,
    texts_of,
)
from fsm_agent.debug.core.commands import breakpoints_in, read_command
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.pending_request import STATUSES
from fsm_agent.debug.core.record import MOST, search
from fsm_agent.debug.web.page import Body, Page, answer, events, pictures_of, tree
from fsm_agent.errors import ConfigError, FsmAgentError
from fsm_agent.sessions.store.insights import insights
from fsm_agent.support.local_server import LOOPBACK, bind_loopback
from fsm_agent.support.web_server import WebServer

# ----------------------------------------------------------------------------------------------------
# Reading what an address asks for: numbers, positions, limits. A wrong value is a ``MalformedArgument``.


def limits(request: Request) -> dict[str, int]:
    """Return the limits requested as a replacement, empty if none are given."""
    given = request.query_params.get("limits", "{}")
    try:
        wanted = json.loads(given)
    except (ValueError, RecursionError):
        raise MalformedArgument("limits are not JSON", given[:80], '{"retries": 3}') from None
    if not isinstance(wanted, dict):
        raise MalformedArgument("limits are not an object", given[:80], '{"retries": 3}')
    return {name: number(wanted, name) for name in wanted}


def choices_at(debugger: Debugger, move: Mapping[str, Any], limits: Mapping[str, int]) -> dict[str, Any]:
    """Return the rows of each event of the state that a move left, under these limits instead of its own."""
    record, at, table, state = debugger.record, move["seq"], debugger.table, move["source"]
    known = {**record.snapshot(at).get("limits", {}), **limits}
    budgets = Budgets(record.counters(at - 1, debugger.kind.counters), known)
    return {
        event: [one.to_dict() for one in choices(table, state, event, budgets)]
        for event in table.events(state)
    }


def whole(request: Request, name: str, default: int) -> int:
    """Return a whole number from 0 that is given by name."""
    given = request.query_params.get(name)
    return default if given is None else _whole(name, given)


def position(request: Request) -> int:
    """Return the position in the path."""
    return _whole("the position", request.path_params["at"])


def _whole(name: str, given: str) -> int:
    if re.fullmatch("[0-9]{1,12}", given) is None:
        raise MalformedArgument(f"{name} is not a number", given[:40], "a whole number from 0")
    return int(given)


WINDOW = 400
"""Moves that one answer holds at most."""
MOST_DAYS = 3_650
"""Days that plots go back at most."""
FILTERED = 20_000
"""Moves that a filter leaves at most."""


def app_of(
    session: DebugSession, port: int, token: str, first: str | None = None, secrets: Sequence[str] = ()
) -> Starlette:
    """``first`` is the turn that the page opens with; ``secrets`` never leave for the page, nor do keys of
    the environment."""
    return DebugPage(session, first, secrets).app(port, token)


class DebugPage(Page):
    """One handler a request. Handlers that read the store run in threads."""

    def __init__(self, session: DebugSession, first: str | None, secrets: Sequence[str]) -> None:
        super().__init__(secrets)
        self._session, self._first = session, first

    def routes(self) -> list[Route]:
        """Return what is answered at which address."""
        turn = "/api/turns/{turn}"
        gets: list[tuple[str, Callable[[Request], Any]]] = [
            ("/api/hello", self.hello), ("/api/turns", self.turns), ("/api/pending", self.pending),
            ("/api/insights", self.insights), ("/api/compare", self.compare),
            (turn, self.turn), (f"{turn}/moves", self.moves),
            (f"{turn}/lanes", self.lanes), (f"{turn}/time", self.time), (f"{turn}/at/{{at}}", self.at),
            (f"{turn}/at/{{at}}/choices", self.choices), (f"{turn}/condition", self.condition),
            (f"{turn}/at/{{at}}/messages", self.messages), (f"{turn}/at/{{at}}/wire", self.wire),
            (f"{turn}/tools", self.tools), (f"{turn}/filter", self.filter),
            (f"{turn}/at/{{at}}/messages/{{index}}", self.before_read),
            (f"{turn}/find", self.find), (f"{turn}/seek", self.seek), (f"{turn}/test", self.test),
            (f"{turn}/export", self.export),
        ]  # fmt: skip
        posts: list[tuple[str, Callable[[Request, Body], Any]]] = [
            ("/api/turns", self.start), ("/api/import", self.import_), ("/api/markdown", self.markdown),
            ("/api/pending/{item}", self.answer_pending),
            (f"{turn}/orders/{{order}}", self.order), (f"{turn}/breakpoints", self.breakpoints),
            (f"{turn}/fork", self.fork), (f"{turn}/resume", self.resume),
        ]  # fmt: skip
        return [
            *super().routes(),
            Route(f"{turn}/events", self.events, methods=["GET"]),
            *(Route(path, self.reading(work), methods=["GET"]) for path, work in gets),
            *(Route(path, self.changing(work), methods=["POST"]) for path, work in posts),
        ]

    # What there is

    def hello(self, request: Request) -> Any:
        """Answer with what the page needs once: the table of ``turn``, its map, what may be done."""
        turn = request.query_params.get("turn")
        kind = self._session.open(turn).kind if turn and self._session.kind.inner else self._session.kind
        table = kind.table
        return {
            "first": self._first or self._session.newest(),
            "canRun": self._session.can_run,
            "states": list(table.states),
            "final": table.final,
            "counters": kind.counters,
            "flags": [counter.name for counter in table.counters if counter.flag],
            "talks": kind.talks,
            "over": kind.over,
            "holds": kind.holds,
            "name": table.name,
            "rows": {
                row.id: {"rung": row.rung, "guard": row.guard.label, "why": row.why, "exit": row.exit}
                for row in table.rows
            },
            **pictures_of(table),
            "outcomes": {row.exit: outcome_of(row.exit) for row in table.rows if row.exit},
            "targets": {one: targets_of(table, one) for one in get_args(Kind)},
            "names": {"texts": dict(texts_of(kind)), "numbers": numbers_of(kind)},
            "statuses": list(STATUSES),
        }

    def turns(self, request: Request) -> Any:
        """Answer with the newest turns, at most 500, as a tree."""
        limit = min(whole(request, "limit", 50), 500)
        return {"turns": self._session.tree(limit)}

    def pending(self, request: Request) -> Any:
        """Answer with what suspended turns wait for; what is asked is as it is, and nothing of it masked."""
        items = self._session.pending.open()
        asked = [exact({"asked": one.asked, "choices": one.choices}) for one in items]
        return {"pending": [one.to_dict() | whole for one, whole in zip(items, asked, strict=True)]}

    def insights(self, request: Request) -> Any:
        """Answer with what the turns of the last ``days`` took by day and by row, and with those whose path
        is improbable."""
        days = min(max(whole(request, "days", 30), 1), MOST_DAYS)
        found = insights(self._session.store, days)
        return {
            "days": [asdict(one) for one in found.days],
            "rows": [{"row": one.row, **one.spent.to_dict()} for one in found.rows],
            "improbable": [asdict(one) for one in improbable_turns(self._session.store, days)],
        }

    def turn(self, request: Request) -> Any:
        """Answer with one turn, where it is, and its breakpoints."""
        debugger = self._debugger(request)
        crash = self._session.crash(debugger.id)
        return {
            **debugger.record.overview(),
            "count": debugger.record.count,
            "status": debugger.status.to_dict(),
            "breakpoints": [one.to_dict() for one in debugger.breakpoints],
            "taken": debugger.record.count_rows(),
            "crash": None if crash is None else crash.to_dict(),
        }

    def moves(self, request: Request) -> Any:
        """Answer with some of a turn's moves, by their numbers."""
        first = max(1, whole(request, "first", 1))
        last = min(whole(request, "last", first + WINDOW - 1), first + WINDOW - 1)
        return {"first": first, "moves": noted_moves(self._debugger(request).record, first, last)}

    def tools(self, request: Request) -> Any:
        """Answer with the tools that a turn called, and how often."""
        return {"tools": count_tools(self._debugger(request).record)}

    def filter(self, request: Request) -> Any:
        """Answer with the moves that called ``tool`` and in which ``text`` occurs, where they are given."""
        record = self._debugger(request).record
        text, tool = (request.query_params.get(name, "").strip() for name in ("text", "tool"))
        found = set(range(1, record.count + 1))
        if tool:
            found &= set(moves_of_tool(record, tool))
        if text:
            found &= set(record.find(text, limit=FILTERED))
        return {"moves": sorted(found)[:FILTERED]}

    def lanes(self, request: Request) -> Any:
        """Answer with a turn's path, aggregated to the given number of columns."""
        debugger = self._debugger(request)
        record = debugger.record
        count = len(record.path()) - 1
        first, last = whole(request, "first", 0), min(whole(request, "last", count), count)
        buckets = max(1, min(whole(request, "buckets", 1000), 4000))
        masks = record.lanes(first, last, buckets, debugger.table.states)
        return {"first": first, "last": last, "count": count, "masks": masks}

    def time(self, request: Request) -> Any:
        """Answer with a turn's path on a time axis, aggregated to the given number of columns."""
        debugger = self._debugger(request)
        return columns(debugger.record, whole(request, "buckets", 1000), debugger.table.states)

    def choices(self, request: Request) -> Any:
        """Answer with the rows that could have been taken by a move, under other limits where ``limits``
        names some (a JSON object)."""
        debugger, at = self._debugger(request), position(request)
        move = next(iter(debugger.record.moves(at, at)), None)
        if move is None:
            raise ConfigError("no move led here", at, f"1 to {debugger.record.count}")
        return {"lines": choices_at(debugger, move, limits(request))}

    def condition(self, request: Request) -> Any:
        """Answer whether a condition of a breakpoint can be read; an error says what cannot."""
        self._debugger(request).breakpoints.holds(request.query_params.get("text", "").strip())
        return {"fine": True}

    def at(self, request: Request) -> Any:
        """Everything about one position but messages and wire."""
        debugger = self._debugger(request)
        at, record = position(request), debugger.record
        snapshot = record.snapshot(at)
        move = next(iter(record.moves(at, at)), None) if at else None
        return {
            "at": at,
            "state": snapshot["state"],
            "move": move,
            "choices": move and choices_at(debugger, move, {}),
            "visit": record.visit(at - 1) if at else [],
            "now": debugger.visit(at),
            "changed": [] if at == 0 else record.changes_at(at),
            "waits": waits_of(record, at - 1) if at else {},
            "spent": asdict(record.cost_at(at)) if debugger.kind.talks else None,
            "counters": record.counters(at, debugger.kind.counters),
            "limits": snapshot.get("limits", {}),
            "snapshot": snapshot,
            "messages": record.message_count(at),
            "messagesBefore": record.message_count(at - 1) if at else 0,
        }

    def messages(self, request: Request) -> Any:
        """Answer with some messages of the transcript at a position."""
        record, at = self._debugger(request).record, position(request)
        count = record.message_count(at)
        last = min(whole(request, "last", count - 1), count - 1)
        first = whole(request, "first", max(0, last - 49))
        return {
            "first": first,
            "count": count,
            "messages": record.messages(at, first, min(last, first + 199)),
        }

    def before_read(self, request: Request) -> Any:
        """Answer with the position before the model read a message of the transcript at a position, and with
        that before it wrote it, if it did."""
        index = _whole("the number of the message", request.path_params["index"])
        debugger = self._debugger(request)
        at, path = debugger.record.before_read(position(request), index), debugger.record.path()
        written = at - 1 if at and path[at - 1] == debugger.kind.over else None
        return {"at": at, "state": path[at], "written": written}

    def wire(self, request: Request) -> Any:
        """Answer with the request that was sent at a position."""
        return self._debugger(request).wire(position(request))

    def find(self, request: Request) -> Any:
        """Answer with the places of a turn in which a text occurs."""
        text = request.query_params.get("text", "").strip()
        if not text:
            raise ConfigError("there is nothing to look for", text, "some text")
        hits = search(self._debugger(request).record, text)
        return {"found": [hit.to_dict() for hit in hits], "more": len(hits) >= MOST}

    def seek(self, request: Request) -> Any:
        """The nearest position before (``back=1``) or after ``at`` at which a breakpoint stops."""
        debugger = self._debugger(request)
        debugger.cursor.to(whole(request, "at", 0))
        if request.query_params.get("back"):
            return {"at": debugger.cursor.back_to(debugger.breakpoints)[0]}
        found = debugger.cursor.forward_to(debugger.breakpoints)
        return {"at": found[0] if found else None}

    def test(self, request: Request) -> Any:
        """Answer with a test that plays the turn again."""
        return {"text": self._session.test(request.path_params["turn"])}

    def export(self, request: Request) -> Any:
        """Answer with the run as a file for another home."""
        return {"text": self._session.export(request.path_params["turn"])}

    def compare(self, request: Request) -> Any:
        """Answer with where two turns part."""
        left, right = (request.query_params.get(name, "") for name in ("left", "right"))
        return self._session.compare(self._session.find(left), self._session.find(right)).to_dict()

    async def events(self, request: Request) -> Response:
        """Stream the events of a turn until the client disconnects."""
        turn = request.path_params["turn"]
        try:
            await run_in_threadpool(self._session.open, turn)
        except FsmAgentError as error:
            return answer({"error": str(error)}, self._secrets)
        stream = events(lambda: self._session.open(turn), self._secrets)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    # What is done

    def start(self, request: Request, body: Body) -> Any:
        """Begin a turn."""
        return {"turn": self._session.start(text(body, "text")).id}

    def markdown(self, request: Request, body: Body) -> Any:
        """Answer with the blocks of a text, or none for one that is shown as it is."""
        return {"blocks": tree(text(body, "text"))}

    def answer_pending(self, request: Request, body: Body) -> Any:
        """Answer what a suspended turn waits for."""
        item = answer_to(self._session.pending, request.path_params["item"], text(body, "said"))
        return {"told": item.said}

    def order(self, request: Request, body: Body) -> Any:
        debugger = self._debugger(request)
        debugger.order(read_command(request.path_params["order"], body))
        return {"status": debugger.status.to_dict()}

    def breakpoints(self, request: Request, body: Body) -> Any:
        """Replace a turn's breakpoints."""
        debugger = self._debugger(request)
        kept = self._session.set_breakpoints(debugger, breakpoints_in(body))
        return {"breakpoints": [one.to_dict() for one in kept]}

    def fork(self, request: Request, body: Body) -> Any:
        """Begin a new turn at a position of another one, with changes."""
        edit = body.get("edit") or {}
        if not isinstance(edit, Mapping):
            raise MalformedArgument("edit is not an object", edit, "what is changed in the fork, or none")
        return {"turn": self._session.fork(request.path_params["turn"], number(body, "at"), edit).id}

    def resume(self, request: Request, body: Body) -> Any:
        """Continue an unfinished turn."""
        return {"turn": self._session.resume(request.path_params["turn"]).id}

    def import_(self, request: Request, body: Body) -> Any:
        """Take in a run that was exported."""
        return {"turn": self._session.import_(text(body, "text"))}

    # Inside

    def _debugger(self, request: Request) -> Debugger:
        return self._session.open(request.path_params["turn"])


# ----------------------------------------------------------------------------------------------------
# Serve the page: on 127.0.0.1 only, with a new token at each start.

PATIENCE = 10.0
"""Seconds in which the server is up, or never."""


class PageWebServer(WebServer):
    """Ends at once: a stream of events would end only with its client."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close every connection, then stop."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await super().shutdown(sockets)


class PageServer:
    """One page. ``run`` serves until interrupted; ``start`` and ``stop`` serve beside a program. ``make``
    returns the application for a port and a token."""

    def __init__(self, make: Callable[[int, str], Starlette], port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self._socket = bind_loopback(port)
        self.port: int = self._socket.getsockname()[1]
        app = make(self.port, self.token)
        self._server = PageWebServer(
            uvicorn.Config(
                app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
            )
        )
        self._thread: threading.Thread | None = None

    query = ""
    """What the page is asked for at the start."""

    @property
    def address(self) -> str:
        """Where the page is, without the token."""
        return f"http://{LOOPBACK}:{self.port}/"

    @property
    def url(self) -> str:
        """What a person opens: with the token, which a browser sends nowhere."""
        return f"{self.address}{self.query}#token={self.token}"

    def run(self, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until interrupted; ``ready`` is called when the page can be opened."""
        self._server.ready = ready
        asyncio.run(self._server.serve([self._socket]))

    def start(self) -> str:
        """Serve in a thread; the address with the token."""
        up = threading.Event()
        self._thread = threading.Thread(target=self.run, args=(up.set,), daemon=True, name="fsm-agent-page")
        self._thread.start()
        if not up.wait(PATIENCE):
            raise ConfigError("the page could not be served", self.address)
        return self.url

    def stop(self) -> None:
        """End what ``start`` began."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(PATIENCE)


class DebugServer(PageServer):
    """The page of a debug session, which begins with the turn ``first``."""

    def __init__(
        self, session: DebugSession, port: int = 0, first: str | None = None, hide: Sequence[str] = ()
    ) -> None:
        super().__init__(lambda at, token: app_of(session, at, token, first, (*hide, token)), port)
        if first:
            self.query = f"?{urlencode({'turn': first})}"
