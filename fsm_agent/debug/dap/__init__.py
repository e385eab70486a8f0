"""The debugger's interface for editors: a server of the Debug Adapter Protocol. See
``docs/debugger-editors.md``.

One thread handles an editor's requests in order, and the events of its turns between them. ``protocol`` reads
messages, ``requests`` answers them and works on the ``context``; ``breakpoints`` maps lines of the table and
of states to breakpoints; ``threads`` and ``variables`` show turns and change them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from fsm_agent.conversation.result import words_of_model
from fsm_agent.debug.core.breakpoints import Arguments
from fsm_agent.debug.core.commands import ContinueTurn, DebugEvent, InterruptTurn, PauseTurn
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.core.remote import RemoteDebugClient
from fsm_agent.debug.dap.context import CAPABILITIES, EditorContext, LaunchOptions, Opener
from fsm_agent.debug.dap.protocol import (
    MOST,
    Admit,
    ByteReader,
    ByteWriter,
    Client,
    Door,
    NotTheProtocol,
    Outbox,
    Write,
    read_message,
    write_message,
)
from fsm_agent.debug.dap.requests import LIVE, REQUESTS
from fsm_agent.debug.dap.threads import TurnThread, in_doubt, question_text, stop_of, unknown
from fsm_agent.errors import ConfigError, FsmAgentError, SessionBusy
from fsm_agent.support.local_server import bind_loopback, bind_socket
from fsm_agent.support.threads import own_streams

__all__ = ["LaunchOptions", "serve_port", "serve_stdio", "talk"]


# Our own Debug Adapter Protocol. The protocol is small, and its libraries are parts of other debuggers; the
# tests use the official schema. A decision list is one breakpoint on its event, so hits count for the list; a
# named rung is one breakpoint per row. A port serves one editor and then ends, because the protocol has no
# passwords.


# ----------------------------------------------------------------------------------------------------
# Reporting the events of turns to an editor.


log = logging.getLogger(__name__)
LOOK_ROUND = 0.5
"""Seconds between checks for turns that a turn has started."""
CHILDREN = (
    "SELECT t.id FROM turns t JOIN sessions s ON s.id = t.session JOIN turns p ON p.session = s.parent"
    " WHERE p.id = ? AND s.kind = 'child' AND t.began >= p.began ORDER BY t.began"
)


class EventTranslator:
    """Translates debugger events to protocol events."""

    def __init__(self, context: EditorContext) -> None:
        self._context = context
        self._known: set[str] = set()
        self._looked = 0.0

    @property
    def busy(self) -> bool:
        """Return whether a turn is running that may start others."""
        return any(thread.stop is None for thread in self._context.threads)

    def tell(self, thread: TurnThread, event: DebugEvent) -> None:
        """Report one event of one turn to the editor."""
        if thread.over:
            return
        match event.kind:
            case "moved":
                self._on_move(thread, event)
            case "paused":
                self._pauses(thread)
            case "running":
                self._runs(thread)
            case "waiting":
                self._waits(thread, event)
            case "log":
                move = next(iter(thread.debugger.record.steps(event.data["seq"], event.data["seq"])), None)
                frames, client = self._context.frames, self._context.client
                where = frames.where(thread, move.row, client) if move is not None else {}
                self._context.outbox.output(event.data["text"], where=where)
            case "left":
                self._context.stands(thread)
            case "ended":
                self._on_end(thread)
            case "exchanged":
                pass  # each move has several; an editor requests the values when the turn pauses
            case _:
                assert_never(event.kind)

    def look_round(self) -> None:
        """Open threads for turns that our turns have started. Called periodically, also when no turn
        pauses."""
        if not self.busy or time.monotonic() - self._looked < LOOK_ROUND:
            return
        self._looked = time.monotonic()
        for parent in [thread.debugger.id for thread in self._context.threads if thread.stop is None]:
            try:
                with self._context.session.store.database.reading() as c:
                    ids = [row[0] for row in c.execute(CHILDREN, (parent,)).fetchall()]
            except FsmAgentError as error:
                log.warning("turns that were started cannot be looked for: %s", error)
                return
            for turn in ids:
                self._child(turn)

    def _pauses(self, thread: TurnThread) -> None:
        """Report a pause. If a nested turn pauses its outer turn, show the nested one."""
        status = thread.debugger.status
        if status.phase != "paused":
            return
        if thread.stop is None:
            self._context.stopped(thread, stop_of(thread, self._context.breakpoints), focus=not status.inner)
        for turn in status.inner:
            self._child(turn)

    def _child(self, turn: str) -> None:
        """Open a thread for a turn that one of ours has started. A turn that this process is just beginning
        can be debugged at the next check."""
        if turn in self._known or self._context.threads.of_turn(turn) is not None:
            return
        focus = self._context.focus
        try:
            debugger = self._context.session.open(turn)
        except ConfigError as error:
            self._known.add(turn)
            self._context.outbox.output(f"a turn was started that cannot be debugged: {error}", "important")
            return
        phase, owner = debugger.status.phase, debugger.record.info.owner
        if phase == "idle" and owner == self._context.session.store.owners.me:
            return
        self._known.add(turn)
        if phase == "ended":
            return
        self._context.open(debugger)
        self._context.focus = focus
        child = self._context.threads.of_turn(turn)
        if child is not None and child.stop is None and debugger.status.phase == "paused":
            self._context.stands(child)  # it paused before a listener was attached

    def _on_move(self, thread: TurnThread, event: DebugEvent) -> None:
        data = event.data
        if self._context.options.trace:
            spent = ", ".join(f"{name} {before}→{after}" for name, before, after in data["changes"])
            text = f"{data['seq']}: {data['source']} –{data['event']}→ {data['dest']}" + (
                f"  ({spent})" if spent else ""
            )
            self._context.outbox.output(
                text, where=self._context.frames.where(thread, data["row"], self._context.client)
            )
        elsewhere = isinstance(thread.debugger.engine, RemoteDebugClient)
        if elsewhere and data["source"] == "ExecuteTools" and self._context.breakpoints.stops_at("unknown"):
            self._doubt(thread, data["seq"] - 1)

    def _doubt(self, thread: TurnThread, at: int) -> None:
        """Pause a turn of another process later: its replies are visible only in the journal."""
        if call := unknown(thread.debugger.record.visit(at)):
            thread.in_doubt = call
            thread.debugger.order(PauseTurn())

    def _runs(self, thread: TurnThread) -> None:
        """Report that the turn continued because of another client or an answer. Later events report the
        rest: the turn may have ended by now."""
        if thread.stop is not None and not thread.looking_back:
            self._context.running(thread)
            self._context.outbox.event("continued", {"threadId": thread.id, "allThreadsContinued": False})

    def _waits(self, thread: TurnThread, event: DebugEvent) -> None:
        held = event.data["held"]
        fresh = [one for one in held if (one["id"], one["allowable"]) not in thread.asked]
        thread.asked = frozenset((one["id"], one["allowable"]) for one in held)
        if not held:
            self._runs(thread)
        elif fresh and any(one["id"] == fresh[0]["id"] for one in thread.debugger.status.held):
            self._asks(thread, fresh)

    def _asks(self, thread: TurnThread, fresh: list[dict[str, Any]]) -> None:
        self._context.outbox.output(f"{thread.name}:", "important")
        for held in fresh:
            self._context.outbox.output(question_text(held), "important")
        if fresh[0]["kind"] != "approval" or self._context.breakpoints.stops_at("approval"):
            self._context.stopped(thread, stop_of(thread, self._context.breakpoints))

    def _on_end(self, thread: TurnThread) -> None:
        overview = thread.debugger.record.overview()
        result = overview["result"] or {}
        if result and (words := words_of_model(result)):
            self._context.outbox.output(words, "stdout")
        if result.get("error"):
            self._context.outbox.output(str(result["error"]), "stderr")
        self._context.outbox.output(f"the turn has ended: {overview['outcome']}, {overview['exit']}")
        if self._context.options.stop_at_end or thread.looking_back or thread.stop is not None:
            self._context.stands(thread)
        else:
            self._context.finish(thread)


FORESEEN = (FsmAgentError, SessionBusy)
LAST_WORDS = 5.0
"""Seconds within which an interrupted turn must end, when the editor disconnects and asks to terminate it."""


class EditorSession:
    """``write`` sends a message; the reader calls ``take`` and ``close``. ``first`` is the turn to begin with
    if the editor names none; ``opener`` creates the debug session for a configuration that needs a separate
    one. With ``admit``, an editor can do nothing until this function has accepted its configuration; a
    ``ConfigError`` disconnects the editor."""

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
        """Queue a message of the editor; callable from any thread."""
        self._inbox.put(lambda: self._answer(message))

    def close(self) -> None:
        """End the session after the editor disconnects; callable from any thread."""
        self._inbox.put(None)

    def run(self) -> None:
        """Process messages and events until the editor disconnects."""
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
        """Report an error raised after the response, or outside a request, in the console."""
        try:
            work()
            self._context.settle()
        except Exception as error:
            self._context.outbox.output(_words(error), "important")

    def _hear(self, thread: TurnThread, event: DebugEvent) -> None:
        """Queue an event. On the turn's own thread, an effect in doubt pauses the turn at once."""
        if self._context.breakpoints.stops_at("unknown") and (call := in_doubt(thread.debugger, event)):
            thread.in_doubt = call
            thread.debugger.order(PauseTurn())
        self._inbox.put(lambda: self._events.tell(thread, event))

    def _answer(self, request: Mapping[str, Any]) -> None:
        command, arguments = request.get("command"), request.get("arguments") or {}
        if request.get("type") != "request" or not isinstance(request.get("seq"), int):
            log.warning("the editor sent what is not a request: %.200r", request)
            return
        try:
            if not isinstance(arguments, Mapping):
                raise ConfigError("the arguments are not an object", arguments, "an object")
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
        """Admit the editor; only then request breakpoints, which may refer to newly imported modules."""
        if self._admit is None:
            return
        self._left = True
        self._admit(arguments)
        self._left, self._admit = False, None
        self._context.outbox.event("initialized")

    # The first turn

    def _start(self) -> None:
        """Open the first turn once the editor has sent its configuration and breakpoints."""
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
        )  # first, so that breakpoints are set before the editor learns of the start
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
        """Continue the turn. ``on``: also continue a turn that is paused at its start only because this
        session started it."""
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
    """Do nothing, while no request is pending."""


def _words(error: Exception) -> str:
    """Return the message for an error. A bug in the debugger is reported and logged; it does not end the
    session."""
    if isinstance(error, FORESEEN):
        return str(error)
    log.error("a bug in the debugger", exc_info=error)
    return f"a bug in the debugger: {type(error).__name__}: {error}"


# ----------------------------------------------------------------------------------------------------
# Accepting an editor's connection: on standard input and output, on a Unix socket, or on a local port.
#
# Standard input and output are preferable: only the parent process can use them. A socket is a file that only
# the current user can open; a port needs a token (``door``). One editor is served.


def talk(
    reading: ByteReader, writing: ByteWriter, session: DebugSession, first: str | None, opener: Opener,
    secrets: Sequence[str] = (),
) -> None:  # fmt: skip
    """Serve one editor over two streams until it disconnects. ``session`` has the turns that it may see,
    ``first`` is the one to begin with, and ``secrets`` are redacted. Raises ``NotTheProtocol`` when the
    first message is invalid."""
    message = read_message(reading)
    if message is not None:
        _serve(message, reading, EditorSession(_writer(writing), session, first, opener, secrets))


def serve_stdio(session: DebugSession, first: str | None, opener: Opener, secrets: Sequence[str] = ()) -> int:
    """Serve one editor over standard input and output, and return 0. Any other output to standard output is
    redirected to standard error, and nothing else reads the input, so neither a tool nor its child processes
    can break the protocol."""
    reading, writing = own_streams()
    try:
        talk(reading, writing, session, first, opener, secrets)
    except NotTheProtocol as error:
        raise ConfigError(
            "what came on standard input is not the Debug Adapter Protocol", str(error), "an editor"
        ) from None
    return 0


def serve_port(
    session: DebugSession, first: str | None, opener: Opener, at: int | Path, secrets: Sequence[str] = (),
    ready: Callable[[str, str], None] = lambda where, token: None,
) -> int:  # fmt: skip
    """Serve one editor at a path or on a local port (0: any free port), and return 0. ``ready`` receives
    the address, and the token that an editor on a port must send. Raises ``ConfigError`` if the address
    cannot be used."""

    def talk(message: Mapping[str, Any], reading: ByteReader, writing: ByteWriter, admit: Admit) -> None:
        hidden = [*secrets, *([door.token] if door.token else [])]
        _serve(message, reading, EditorSession(_writer(writing), session, first, opener, hidden, admit))

    with bind_loopback(at) if isinstance(at, int) else bind_socket(at) as listening:
        listening.listen(MOST)
        door = Door(listening, talk)
        ready(door.where, door.token)
        try:
            door.serve()
        finally:
            if isinstance(at, Path):
                at.unlink(missing_ok=True)
    return 0


def _serve(message: Mapping[str, Any], reading: ByteReader, editor: EditorSession) -> None:
    editor.take(message)
    threading.Thread(target=_read, args=(reading, editor), daemon=True, name="fsm-agent-editor").start()
    editor.run()


def _read(reading: ByteReader, editor: EditorSession) -> None:
    try:
        while (message := read_message(reading)) is not None:
            editor.take(message)
    except (NotTheProtocol, OSError, ValueError) as error:
        log.warning("the editor's connection broke: %s", error)
    finally:
        editor.close()


def _writer(writing: ByteWriter) -> Write:
    closed = False

    def write(message: Mapping[str, Any]) -> None:
        nonlocal closed
        if closed:
            return
        try:
            write_message(writing, message)
        except (OSError, ValueError):  # the reader ends the session
            closed = True

    return write
