"""What the requests of one session work on: its turns, its breakpoints, what is shown, and what the editor is
told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.debug.core.breakpoints import BreakpointHit
from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.dap.breakpoints import EditorBreakpoints, shown
from fsm_agent.debug.dap.expressions import settable
from fsm_agent.debug.dap.options import LaunchOptions
from fsm_agent.debug.dap.protocol import Client, Outbox
from fsm_agent.debug.dap.table_map import state_sources, table_map_of
from fsm_agent.debug.dap.threads import Hear, StackFrames, Stop, TurnThread, TurnThreads, stop_of
from fsm_agent.debug.dap.variables import References
from fsm_agent.errors import ConfigError

ENDS = {"completed": 0, "failed": 1, "partial": 3, "interrupted": 130}
"""Exit code of a turn by its outcome, as of the command ``run``."""


@dataclass(slots=True)
class EditorContext:
    """Used by one thread only. ``later`` runs when the answer to the request in hand has gone out.
    ``ending``: the editor has asked for the end, ``ended``: it was told of it."""

    session: DebugSession
    outbox: Outbox
    hear: Hear
    client: Client = field(default_factory=Client)
    options: LaunchOptions = field(default_factory=LaunchOptions)
    ending: bool = False
    ended: bool = False
    focus: TurnThread | None = None
    threads: TurnThreads = field(init=False)
    breakpoints: EditorBreakpoints = field(init=False)
    frames: StackFrames = field(init=False)
    references: References = field(init=False)
    _later: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.threads = TurnThreads(self.hear)
        self.references = References(settable, self.outbox.secrets)
        self.of(self.session)

    def of(self, session: DebugSession) -> None:
        """Work on the turns of ``session`` from now on; before any is open. Breakpoints that are set are
        looked up again when its table is another."""
        before = getattr(self, "breakpoints", None)
        self.session = session
        table, states = session.kind.table, state_sources(session.kind.states)
        if before is not None and before.table is table:
            return
        map = table_map_of(table)
        self.breakpoints = EditorBreakpoints(table, map, states)
        self.frames = StackFrames((session.kind, *session.kind.inner.values()))
        for point in self.breakpoints.again(before) if before is not None else ():
            self.outbox.event(
                "breakpoint", {"reason": "changed", "breakpoint": shown(point, self.client, map)}
            )

    def later(self, work: Callable[[], None]) -> None:
        """Do this after the answer to the request at hand was sent."""
        self._later.append(work)

    def settle(self) -> None:
        """The answer has gone out; now what follows from it."""
        work, self._later = self._later, []
        for one in work:
            one()

    # Threads

    def open(self, debugger: Debugger) -> TurnThread:
        """Show a turn as a thread, with the session's breakpoints."""
        thread = self.threads.open(debugger)
        self.focus = thread
        self.arm(thread)
        self.outbox.event("thread", {"reason": "started", "threadId": thread.id})
        return thread

    def arm(self, thread: TurnThread) -> None:
        """Give a turn the breakpoints of the session, which are of one table."""
        other = thread.debugger.table is not self.breakpoints.table
        wanted = [] if self.options.no_debug or other else self.breakpoints.core()
        try:
            thread.debugger.set_breakpoints(wanted)
        except ConfigError as error:
            self.outbox.output(f"breakpoints do not stop {thread.name}: {error}", "important")

    def stopped(self, thread: TurnThread, stop: Stop, *, focus: bool = True) -> None:
        """Tell that a turn stands still."""
        thread.stop = stop
        self.references.forget(thread.id)
        body: dict[str, Any] = {
            "reason": stop.reason, "description": stop.description, "threadId": thread.id,
            "preserveFocusHint": not focus,
            "allThreadsStopped": False,
        }  # fmt: skip
        if stop.text:
            body["text"] = stop.text
        if stop.hits:
            body["hitBreakpointIds"] = list(stop.hits)
        if focus:
            self.focus = thread
        self.outbox.event("stopped", body)

    def stands(self, thread: TurnThread) -> None:
        """Tell that the engine of a turn stands still, and why."""
        self.stopped(thread, stop_of(thread, self.breakpoints))

    def looks(self, thread: TurnThread, hits: Iterable[BreakpointHit] = ()) -> None:
        """Tell where a person looks, which met these breakpoints there."""
        numbers = tuple(point.id for point in self.breakpoints.of(hit.breakpoint.id for hit in hits))
        self.stopped(thread, looked(thread, self.breakpoints, numbers))

    def running(self, thread: TurnThread) -> None:
        """A turn goes on because the editor asked for it."""
        thread.stop = None
        self.references.forget(thread.id)

    def finish(self, thread: TurnThread) -> None:
        """A turn is not looked at any more; after the last one the session is over."""
        thread.over, thread.stop = True, None
        thread.unlisten()
        self.outbox.event("thread", {"reason": "exited", "threadId": thread.id})
        if next(iter(self.threads), None) is None:
            outcome = thread.debugger.record.info.outcome
            self.outbox.event("exited", {"exitCode": ENDS.get(outcome or "", 1)})
            self.terminated()

    def terminated(self) -> None:
        """Tell the editor, once, that nothing more comes."""
        if not self.ended:
            self.ended = True
            self.outbox.event("terminated")

    # Branches

    def branch(
        self, thread: TurnThread, at: int, edit: Mapping[str, Any], why: str, *, again: bool = False
    ) -> None:
        """Go on from a position as another turn, in a thread of its own, which stands still. ``again``: the
        editor takes the old one to be running, and must be told that it is not. Raises ``ConfigError``."""
        debugger = self.session.fork(thread.debugger.id, at, edit)

        def tell() -> None:
            if again and thread.stop is not None:
                self.stopped(thread, thread.stop, focus=False)
            made = self.open(debugger)
            self.outbox.output(
                f"{why}: turn {debugger.id} goes on from move {at}; turn {thread.debugger.id} stays as it is",
                "important",
            )
            self.stopped(made, Stop("restart", f"Forked from move {at}: {why}"))

        self.later(tell)

    def revive(self, thread: TurnThread) -> None:
        """Resume an unfinished turn in its thread. Raises ``ConfigError``, ``SessionBusy``."""
        debugger = self.session.resume(thread.debugger.id)
        thread.unlisten()
        thread.debugger = debugger
        thread.unlisten = debugger.listen(lambda event: self.hear(thread, event))
        self.arm(thread)
        self.later(lambda: self.stands(thread))

    def look(self, thread: TurnThread, at: int) -> None:
        """Look at a position."""
        thread.stand()
        thread.debugger.cursor.to(at)
        self.later(lambda: self.looks(thread))


def looked(thread: TurnThread, breakpoints: EditorBreakpoints, hits: tuple[int, ...] = ()) -> Stop:
    """Why a turn that is looked at elsewhere stands where it does."""
    if not thread.looking_back:
        stop = stop_of(thread, breakpoints)
        return (
            Stop("breakpoint", stop.description, hits=hits)
            if hits
            else Stop("step", stop.description, stop.text, stop.hits)
        )
    where = f"Looking back at move {thread.at} of {thread.debugger.record.count}"
    if hits:
        return Stop("breakpoint", where, hits=hits)
    return Stop("entry" if thread.at == 0 else "step", where)
