"""One editor's session: requests in the order they come, between them what happens to the turns. One thread does all of it."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsm_agent.debug.core.arguments import Arguments
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.events import Event
from fsm_agent.debug.dap import moving, requests
from fsm_agent.debug.dap.capabilities import CAPABILITIES
from fsm_agent.debug.dap.client import Client
from fsm_agent.debug.dap.context import Desk
from fsm_agent.debug.dap.events import Happenings
from fsm_agent.debug.dap.options import Opener, Options
from fsm_agent.debug.dap.outbox import Post, Write
from fsm_agent.debug.dap.threads import Lane, in_doubt, stop_of
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy

log = logging.getLogger(__name__)
LOOK_ROUND = 0.5
"""Seconds between two looks for turns that a turn has started."""
LAST_WORDS = 5.0
"""Seconds that an interrupted turn has to end, when the editor leaves and wants it ended."""

Answer = Callable[[Desk, Arguments], dict[str, Any] | None]
REQUESTS: Mapping[str, Answer] = {
    "setBreakpoints": requests.set_breakpoints, "setFunctionBreakpoints": requests.set_functions,
    "setExceptionBreakpoints": requests.set_filters, "breakpointLocations": requests.breakpoint_locations,
    "threads": requests.threads, "stackTrace": requests.stack_trace, "scopes": requests.scopes, "variables": requests.variables,
    "exceptionInfo": requests.exception_info, "loadedSources": requests.loaded_sources, "evaluate": requests.evaluate,
    "completions": requests.completions, "continue": moving.continue_, "next": moving.next_, "stepIn": moving.step_in,
    "stepOut": moving.step_out, "stepBack": moving.step_back, "reverseContinue": moving.reverse_continue, "pause": moving.pause,
    "restartFrame": moving.restart_frame, "setVariable": moving.set_variable, "terminate": moving.terminate,
    "terminateThreads": moving.terminate_threads,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A message of the editor."""

    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """Something happened to a turn."""

    lane: Lane
    event: Event


class Session:
    """``write`` sends a message, ``take`` and ``close`` are called by whoever reads them. ``first`` is the turn to begin with
    when the editor names none; ``opener`` makes the debug session of a configuration that wants one of its own."""

    def __init__(
        self, write: Write, session: DebugSession, first: str | None, opener: Opener, secrets: Sequence[str] = ()
    ) -> None:
        self._inbox: queue.SimpleQueue[Asked | Heard | None] = queue.SimpleQueue()
        self._desk = Desk(session, Post(write, secrets), self._hear)
        self._happenings = Happenings(self._desk)
        self._first, self._opener = first, opener
        self._own: DebugSession | None = None
        self._begin: tuple[Mapping[str, Any], Options] | None = None
        self._initialized = self._configured = self._left = False
        self._looked = 0.0

    def take(self, message: Mapping[str, Any]) -> None:
        """A message of the editor; from any thread."""
        self._inbox.put(Asked(message))

    def close(self) -> None:
        """The editor is gone; from any thread."""
        self._inbox.put(None)

    def run(self) -> None:
        """Until the editor leaves."""
        try:
            while not self._left:
                try:
                    item = self._inbox.get(timeout=LOOK_ROUND if self._happenings.busy else None)
                except queue.Empty:
                    self._look_round()
                    continue
                self._look_round()
                if item is None:
                    return
                self._react(item)
        finally:
            for lane in self._desk.lanes:
                lane.unlisten()
            if self._own is not None:
                self._own.close()

    def _react(self, item: Asked | Heard) -> None:
        """What goes wrong after the answer has gone out, or unasked, is told in the console."""
        try:
            if isinstance(item, Asked):
                self._answer(item.message)
            else:
                self._happenings.of(item.lane, item.event)
            self._desk.settle()
        except (FsmAgentError, SessionBusy) as error:
            self._desk.post.output(str(error), "important")
        except Exception as error:  # a bug of ours must not end the session
            log.exception("%r could not be shown", item)
            self._desk.post.output(_bug(error), "important")

    def _look_round(self) -> None:
        """Also while so much happens that there is never a pause."""
        if self._happenings.busy and time.monotonic() - self._looked >= LOOK_ROUND:
            try:
                self._happenings.look_round()
            except FsmAgentError as error:
                log.warning("turns that were started cannot be looked for: %s", error)
            self._looked = time.monotonic()

    def _hear(self, lane: Lane, event: Event) -> None:
        """On the turn's own thread: what must stop it at once is seen here."""
        if self._desk.points.stops_at("unknown") and (call := in_doubt(lane.debugger, event)):
            lane.in_doubt = call
            lane.debugger.order("pause")
        self._inbox.put(Heard(lane, event))

    def _answer(self, request: Mapping[str, Any]) -> None:
        command, arguments = request.get("command"), request.get("arguments") or {}
        if request.get("type") != "request" or not isinstance(request.get("seq"), int):
            log.warning("the editor sent what is no request: %.200r", request)
            return
        try:
            if not isinstance(arguments, Mapping):
                raise ConfigError("the arguments are no object", arguments, "an object")
            self._carry_out(str(command), arguments, request)
        except (FsmAgentError, SessionBusy) as error:
            quiet = command == "evaluate" and arguments.get("context") in ("hover", "watch", "clipboard")
            self._desk.post.refuse(request, str(error), show=not quiet)
        except Exception as error:  # a bug of ours must not end the session; it is told here and there
            log.exception("request %s failed", command)
            self._desk.post.refuse(request, _bug(error))

    def _carry_out(self, command: str, arguments: Arguments, request: Mapping[str, Any]) -> None:
        desk = self._desk
        if not self._initialized and command not in ("initialize", "disconnect"):
            raise ConfigError("a session begins with another request", command, "initialize")
        match command:
            case "initialize":
                self._initialized, desk.client = True, Client.of(arguments)
                desk.post.reply(request, CAPABILITIES)
                desk.post.event("initialized")
            case "launch" | "attach":
                if self._begin is not None:
                    raise ConfigError("the session has its turn already", command, "another session")
                self._begin = (request, Options.of(arguments, attach=command == "attach"))
                desk.later(self._start)
            case "configurationDone":
                self._configured = True
                desk.post.reply(request)
                desk.later(self._start)
            case "disconnect":
                self._leave(bool(arguments.get("terminateDebuggee")))
                desk.post.reply(request)
                self._left = True
            case _ if command in REQUESTS:
                body = REQUESTS[command](desk, arguments)
                desk.post.reply(request, body)
            case _:
                raise ConfigError("no such request here", command, ", ".join(REQUESTS))

    # The first turn

    def _start(self) -> None:
        """When the editor has said what to debug and has set its breakpoints."""
        if self._begin is None or not self._configured:
            return
        request, options = self._begin
        try:
            debugger = self._debugger(options)
        except Exception as error:
            foreseen = isinstance(error, FsmAgentError | SessionBusy)
            if not foreseen:
                log.exception("the turn could not be opened")
            self._desk.post.refuse(request, str(error) if foreseen else _bug(error))
            self._desk.terminated()
            return
        self._desk.options = options
        lane = self._desk.open(debugger)  # first, so that breakpoints are there when the editor hears that it has begun
        self._desk.post.reply(request)
        started = options.task is not None or options.table is not None or options.resume
        self._go(lane, options, started or not options.attach)

    def _debugger(self, options: Options) -> Debugger:
        first = self._first if (options.task, options.turn, options.home) == (None, None, None) else None
        if options.own_debug_session and first is None:
            if self._own is None:
                self._own = self._opener(options)
            self._desk.of(self._own)
        elif options.own_debug_session:
            self._desk.post.output(f"turn {first} runs with what the server was started with, not with the configuration's")
        session = self._desk.session
        fresh = options.table is not None and not options.attach and options.turn is None
        if options.task is not None or fresh:
            return session.start(options.task or "")
        named = session.find(options.turn) if options.turn is not None else None
        turn = named or first or (session.newest() if options.attach else None)
        if turn is None:
            raise ConfigError(
                "there is no turn to debug", None, "task, the message of a new one, or turn, the id of one there is"
            )
        return session.resume(turn) if options.resume else session.open(turn)

    def _go(self, lane: Lane, options: Options, on: bool) -> None:
        """``on``: a turn that stands at its start, or is just about to, only because it was started for us, goes on."""
        desk, phase = self._desk, lane.debugger.status.phase
        if on and phase in ("running", "paused") and not options.stop_on_entry:
            lane.debugger.order("continue")
        elif phase == "running" and options.stop_on_entry:
            lane.debugger.order("pause")
        elif phase != "running":
            desk.stopped(lane, stop_of(lane, desk.points))

    def _leave(self, interrupt: bool) -> None:
        live = [lane for lane in self._desk.lanes if lane.debugger.status.phase in moving.LIVE]
        if not interrupt:
            return
        for lane in live:
            lane.debugger.order("interrupt")
        until = time.monotonic() + LAST_WORDS
        while time.monotonic() < until and any(lane.debugger.status.phase in moving.LIVE for lane in live):
            time.sleep(0.01)


def _bug(error: Exception) -> str:
    return f"a bug in the debugger: {type(error).__name__}: {error}"
