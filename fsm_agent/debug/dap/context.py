"""What the requests of one session work on: its turns, its breakpoints, what is shown, and what the editor is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fsm_agent.debug.core.debug_session import DebugSession
from fsm_agent.debug.core.debugger import Debugger
from fsm_agent.debug.dap.breakpoints import Points, shown
from fsm_agent.debug.dap.client import Client
from fsm_agent.debug.dap.edits import settable
from fsm_agent.debug.dap.expressions import Words
from fsm_agent.debug.dap.frames import Frames
from fsm_agent.debug.dap.options import Options
from fsm_agent.debug.dap.outbox import Post
from fsm_agent.debug.dap.scopes import Scopes
from fsm_agent.debug.dap.table_map import state_sources, table_map_of
from fsm_agent.debug.dap.threads import Hear, Lane, Lanes, Stop, stop_of
from fsm_agent.debug.dap.variables import References
from fsm_agent.errors import ConfigError

ENDS = {"completed": 0, "failed": 1, "partial": 3, "interrupted": 130}
"""Exit code of a turn by its outcome, as of the command ``run``."""


@dataclass(slots=True)
class Desk:
    """Used by one thread only. ``later`` runs when the answer to the request in hand has gone out. ``ending``: the editor
    has asked for the end, ``ended``: it was told of it."""

    session: DebugSession
    post: Post
    hear: Hear
    client: Client = field(default_factory=Client)
    options: Options = field(default_factory=Options)
    ending: bool = False
    ended: bool = False
    focus: Lane | None = None
    lanes: Lanes = field(init=False)
    points: Points = field(init=False)
    frames: Frames = field(init=False)
    references: References = field(init=False)
    scopes: Scopes = field(init=False)
    words: Words = field(init=False)
    _later: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lanes = Lanes(self.hear)
        self.references = References(settable, self.post.secrets)
        self.of(self.session)

    def of(self, session: DebugSession) -> None:
        """Work on the turns of ``session`` from now on; before any is open. Breakpoints that are set are looked up again when
        its table is another."""
        before = getattr(self, "points", None)
        self.session = session
        table, states = session.subject.table, state_sources(session.subject.states)
        if before is not None and before.table is table:
            return
        map = table_map_of(table)
        self.points = Points(table, map, states)
        self.frames = Frames(table, map, states)
        self.scopes = Scopes(table, self.references)
        self.words = Words(self.scopes)
        for point in self.points.again(before) if before is not None else ():
            self.post.event("breakpoint", {"reason": "changed", "breakpoint": shown(point, self.client, map)})

    def later(self, work: Callable[[], None]) -> None:
        self._later.append(work)

    def settle(self) -> None:
        """The answer has gone out; now what follows from it."""
        work, self._later = self._later, []
        for one in work:
            one()

    # Threads

    def open(self, debugger: Debugger) -> Lane:
        """Show a turn as a thread, with the session's breakpoints."""
        lane = self.lanes.open(debugger)
        self.focus = lane
        self.arm(lane)
        self.post.event("thread", {"reason": "started", "threadId": lane.id})
        return lane

    def arm(self, lane: Lane) -> None:
        """Give a turn the breakpoints of the session."""
        wanted = [] if self.options.no_debug else self.points.core()
        try:
            lane.debugger.set_breakpoints(wanted)
        except ConfigError as error:
            self.post.output(f"breakpoints do not stop {lane.name}: {error}", "important")

    def stopped(self, lane: Lane, stop: Stop, *, focus: bool = True) -> None:
        """Tell that a turn stands still."""
        lane.stop = stop
        self.references.forget(lane.id)
        body: dict[str, Any] = {
            "reason": stop.reason, "description": stop.description, "threadId": lane.id, "preserveFocusHint": not focus,
            "allThreadsStopped": False,
        }  # fmt: skip
        if stop.text:
            body["text"] = stop.text
        if stop.hits:
            body["hitBreakpointIds"] = list(stop.hits)
        if focus:
            self.focus = lane
        self.post.event("stopped", body)

    def running(self, lane: Lane) -> None:
        """A turn goes on because the editor asked for it."""
        lane.stop = None
        self.references.forget(lane.id)

    def finish(self, lane: Lane) -> None:
        """A turn is not looked at any more; after the last one the session is over."""
        lane.over, lane.stop = True, None
        lane.unlisten()
        self.post.event("thread", {"reason": "exited", "threadId": lane.id})
        if next(iter(self.lanes), None) is None:
            outcome = lane.debugger.record.info.outcome
            self.post.event("exited", {"exitCode": ENDS.get(outcome or "", 1)})
            self.terminated()

    def terminated(self) -> None:
        if not self.ended:
            self.ended = True
            self.post.event("terminated")

    # Branches

    def branch(self, lane: Lane, at: int, edit: Mapping[str, Any], why: str, *, again: bool = False) -> None:
        """Go on from a position as another turn, in a thread of its own, which stands still. ``again``: the editor takes the old
        one to be running, and must be told that it is not. Raises ``ConfigError``."""
        debugger = self.session.fork(lane.debugger.id, at, edit)

        def tell() -> None:
            if again and lane.stop is not None:
                self.stopped(lane, lane.stop, focus=False)
            made = self.open(debugger)
            self.post.output(
                f"{why}: turn {debugger.id} goes on from move {at}; turn {lane.debugger.id} stays as it is", "important"
            )
            self.stopped(made, Stop("restart", f"Forked from move {at}: {why}"))

        self.later(tell)

    def revive(self, lane: Lane) -> None:
        """Resume an unfinished turn in its thread. Raises ``ConfigError``, ``SessionBusy``."""
        debugger = self.session.resume(lane.debugger.id)
        lane.unlisten()
        lane.debugger = debugger
        lane.unlisten = debugger.listen(lambda event: self.hear(lane, event))
        self.arm(lane)
        self.later(lambda: self.stopped(lane, stop_of(lane, self.points)))

    def look(self, lane: Lane, at: int) -> None:
        """Look at a position."""
        lane.stand()
        lane.debugger.cursor.to(at)
        self.later(lambda: self.stopped(lane, looked(lane, self.points)))


def looked(lane: Lane, points: Points, hits: tuple[int, ...] = ()) -> Stop:
    """Why a turn that is looked at elsewhere stands where it does."""
    if not lane.looking_back:
        stop = stop_of(lane, points)
        return Stop("breakpoint", stop.description, hits=hits) if hits else Stop("step", stop.description, stop.text, stop.hits)
    where = f"Looking back at move {lane.at} of {lane.debugger.record.count}"
    if hits:
        return Stop("breakpoint", where, hits=hits)
    return Stop("entry" if lane.at == 0 else "step", where)
