"""One editor's session: requests in the order they come, between them what happens to the turns. One thread
does all of it."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsm_agent.debug.core.arguments import Arguments
from fsm_agent.debug.core.commands import ContinueTurn, InterruptTurn, PauseTurn
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.events import DebugEvent
from fsm_agent.debug.dap.context import EditorContext
from fsm_agent.debug.dap.door import Admit
from fsm_agent.debug.dap.events import LOOK_ROUND, EventTranslator
from fsm_agent.debug.dap.options import CAPABILITIES, LaunchOptions, Opener
from fsm_agent.debug.dap.protocol import Client, Outbox, Write
from fsm_agent.debug.dap.requests import LIVE, REQUESTS
from fsm_agent.debug.dap.threads import TurnThread, in_doubt
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy

log = logging.getLogger(__name__)
FORESEEN = (FsmAgentError, SessionBusy)
LAST_WORDS = 5.0
"""Seconds that an interrupted turn has to end, when the editor leaves and wants it ended."""


class EditorSession:
    """``write`` sends a message, ``take`` and ``close`` are called by whoever reads them. ``first`` is the
    turn to begin with when the editor names none; ``opener`` makes the debug session of a configuration that
    wants one of its own. With ``admit``, an editor can do nothing before its configuration was shown to that
    without a ``ConfigError``, and is sent away otherwise."""

    def __init__(
        self,
        write: Write,
        session: DebugSession,
        first: str | None,
        opener: Opener,
        secrets: Sequence[str] = (),
        admit: Admit | None = None,
    ) -> None:
        self._admit = admit
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._context = EditorContext(session, Outbox(write, secrets), self._hear)
        self._events = EventTranslator(self._context)
        self._first, self._opener = first, opener
        self._own: DebugSession | None = None
        self._begin: tuple[Mapping[str, Any], LaunchOptions] | None = None
        self._initialized = self._configured = self._left = False

    def take(self, message: Mapping[str, Any]) -> None:
        """Answer a message of the editor, in its turn; from any thread."""
        self._inbox.put(lambda: self._answer(message))

    def close(self) -> None:
        """The editor is gone; from any thread."""
        self._inbox.put(None)

    def run(self) -> None:
        """Until the editor leaves."""
        try:
            while not self._left:
                try:
                    work = self._inbox.get(timeout=LOOK_ROUND if self._events.busy else None)
                except queue.Empty:
                    work = _nothing
                self._events.look_round()
                if work is None:
                    return
                self._react(work)
        finally:
            for thread in self._context.threads:
                thread.unlisten()
            if self._own is not None:
                self._own.close()

    def _react(self, work: Callable[[], None]) -> None:
        """What goes wrong after the answer has gone out, or unasked, is told in the console."""
        try:
            work()
            self._context.settle()
        except Exception as error:
            self._context.outbox.output(_words(error), "important")

    def _hear(self, thread: TurnThread, event: DebugEvent) -> None:
        """On the turn's own thread: what must stop it at once is seen here."""
        if self._context.breakpoints.stops_at("unknown") and (call := in_doubt(thread.debugger, event)):
            thread.in_doubt = call
            thread.debugger.order(PauseTurn())
        self._inbox.put(lambda: self._events.tell(thread, event))

    def _answer(self, request: Mapping[str, Any]) -> None:
        command, arguments = request.get("command"), request.get("arguments") or {}
        if request.get("type") != "request" or not isinstance(request.get("seq"), int):
            log.warning("the editor sent what is no request: %.200r", request)
            return
        try:
            if not isinstance(arguments, Mapping):
                raise ConfigError("the arguments are no object", arguments, "an object")
            self._carry_out(str(command), arguments, request)
        except Exception as error:
            quiet = command == "evaluate" and arguments.get("context") in ("hover", "watch", "clipboard")
            self._context.outbox.refuse(
                request, _words(error), show=not quiet or not isinstance(error, FORESEEN)
            )

    def _carry_out(self, command: str, arguments: Arguments, request: Mapping[str, Any]) -> None:
        context = self._context
        if not self._initialized and command not in ("initialize", "disconnect"):
            raise ConfigError("a session begins with another request", command, "initialize")
        if self._admit is not None and command not in ("initialize", "launch", "attach", "disconnect"):
            raise ConfigError("nothing can be asked yet", command, "launch or attach")
        match command:
            case "initialize":
                self._initialized, context.client = True, Client.of(arguments)
                context.outbox.reply(request, CAPABILITIES)
                if self._admit is None:
                    context.outbox.event("initialized")
            case "launch" | "attach":
                self._let_in(arguments)
                if self._begin is not None:
                    raise ConfigError("the session has its turn already", command, "another session")
                self._begin = (request, LaunchOptions.of(arguments, attach=command == "attach"))
                context.later(self._start)
            case "configurationDone":
                self._configured = True
                context.outbox.reply(request)
                context.later(self._start)
            case "disconnect":
                self._leave(bool(arguments.get("terminateDebuggee")))
                context.outbox.reply(request)
                self._left = True
            case _ if command in REQUESTS:
                body = REQUESTS[command](context, arguments)
                context.outbox.reply(request, body)
            case _:
                raise ConfigError("no such request here", command, ", ".join(REQUESTS))

    def _let_in(self, arguments: Arguments) -> None:
        """Breakpoints are asked for afterwards: they may name what is imported."""
        if self._admit is None:
            return
        self._left = True
        self._admit(arguments)
        self._left, self._admit = False, None
        self._context.outbox.event("initialized")

    # The first turn

    def _start(self) -> None:
        """When the editor has said what to debug and has set its breakpoints."""
        if self._begin is None or not self._configured:
            return
        request, options = self._begin
        try:
            debugger = self._debugger(options)
        except Exception as error:
            self._context.outbox.refuse(request, _words(error))
            self._context.terminated()
            return
        self._context.options = options
        thread = self._context.open(
            debugger
        )  # first, so that breakpoints are there when the editor hears that it has begun
        self._context.outbox.reply(request)
        started = options.task is not None or options.table is not None or options.resume
        self._go(thread, options, started or not options.attach)

    def _debugger(self, options: LaunchOptions) -> Debugger:
        first = self._first if (options.task, options.turn, options.home) == (None, None, None) else None
        if options.own_debug_session and first is None:
            if self._own is None:
                self._own = self._opener(options)
            self._context.of(self._own)
        elif options.own_debug_session:
            self._context.outbox.output(
                f"turn {first} runs with what the server was started with, not with the configuration's"
            )
        session = self._context.session
        fresh = options.table is not None and not options.attach and options.turn is None
        if options.task is not None or fresh:
            return session.start(options.task or "")
        named = session.find(options.turn) if options.turn is not None else None
        turn = named or first or (session.newest() if options.attach else None)
        if turn is None:
            raise ConfigError(
                "there is no turn to debug",
                None,
                "task, the message of a new one, or turn, the id of one there is",
            )
        return session.resume(turn) if options.resume else session.open(turn)

    def _go(self, thread: TurnThread, options: LaunchOptions, on: bool) -> None:
        """``on``: a turn that stands at its start, or is just about to, only because it was started for us,
        goes on."""
        context, phase = self._context, thread.debugger.status.phase
        if on and phase in ("running", "paused") and not options.stop_on_entry:
            thread.debugger.order(ContinueTurn())
        elif phase == "running" and options.stop_on_entry:
            thread.debugger.order(PauseTurn())
        elif phase != "running":
            context.stands(thread)

    def _leave(self, interrupt: bool) -> None:
        live = [thread for thread in self._context.threads if thread.debugger.status.phase in LIVE]
        if not interrupt:
            return
        for thread in live:
            thread.debugger.order(InterruptTurn())
        until = time.monotonic() + LAST_WORDS
        while time.monotonic() < until and any(thread.debugger.status.phase in LIVE for thread in live):
            time.sleep(0.01)


def _nothing() -> None:
    """A time in which nobody asked for anything."""


def _words(error: Exception) -> str:
    """What a person is told of an error. A bug of ours must not end the session: it is told, and logged."""
    if isinstance(error, FORESEEN):
        return str(error)
    log.error("a bug in the debugger", exc_info=error)
    return f"a bug in the debugger: {type(error).__name__}: {error}"
