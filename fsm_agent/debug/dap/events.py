"""What an editor is told of what happens to its turns."""

from __future__ import annotations

from typing import Any

from fsm_agent.debug.core.events import Event
from fsm_agent.debug.core.remote_client import RemoteDebugClient
from fsm_agent.debug.dap.context import Desk
from fsm_agent.debug.dap.threads import Lane, stop_of, unknown
from fsm_agent.errors import ConfigError

CHILDREN = (
    "SELECT t.id FROM turns t JOIN sessions s ON s.id = t.session JOIN turns p ON p.session = s.parent"
    " WHERE p.id = ? AND s.kind = 'child' AND t.began >= p.began ORDER BY t.began"
)


class Happenings:
    """Turns events of the debuggers into events of the protocol."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._known: set[str] = set()

    @property
    def busy(self) -> bool:
        """Does a turn run that may start others?"""
        return any(lane.stop is None for lane in self._desk.lanes)

    def of(self, lane: Lane, event: Event) -> None:
        """One event of one turn."""
        if lane.over:
            return
        match event.kind:
            case "moved":
                self._moved(lane, event)
            case "paused":
                if lane.debugger.status.phase == "paused":
                    self._stands(lane)
            case "running":
                self._runs(lane)
            case "waiting":
                self._waits(lane, event)
            case "log":
                move = next(iter(lane.debugger.record.steps(event.data["seq"], event.data["seq"])), None)
                where = self._desk.frames.where(move.row, self._desk.client) if move is not None else {}
                self._desk.post.output(event.data["text"], where=where)
            case "left":
                self._desk.stopped(lane, stop_of(lane, self._desk.points))
            case "ended":
                self._ended(lane)

    def look_round(self) -> None:
        """Turns that our turns have started are threads of their own."""
        for lane in list(self._desk.lanes):
            if lane.stop is not None:
                continue
            with self._desk.session.store.database.reading() as c:
                ids = [row[0] for row in c.execute(CHILDREN, (lane.debugger.id,)).fetchall()]
            for turn in ids:
                if turn not in self._known and self._desk.lanes.of_turn(turn) is None:
                    self._known.add(turn)
                    self._child(turn)

    def _child(self, turn: str) -> None:
        focus = self._desk.focus
        try:
            debugger = self._desk.session.open(turn)
        except ConfigError as error:
            self._desk.post.output(f"a turn was started that cannot be debugged: {error}", "important")
            return
        if debugger.status.phase != "ended":
            self._desk.open(debugger)
            self._desk.focus = focus

    def _moved(self, lane: Lane, event: Event) -> None:
        data = event.data
        if self._desk.options.trace:
            spent = ", ".join(f"{name} {before}→{after}" for name, before, after in data["changes"])
            text = f"{data['seq']}: {data['source']} –{data['event']}→ {data['dest']}" + (f"  ({spent})" if spent else "")
            self._desk.post.output(text, where=self._desk.frames.where(data["row"], self._desk.client))
        elsewhere = isinstance(lane.debugger.engine, RemoteDebugClient)
        if elsewhere and data["source"] == "ExecuteTools" and self._desk.points.stops_at("unknown"):
            self._doubt(lane, data["seq"] - 1)

    def _doubt(self, lane: Lane, at: int) -> None:
        """Of a turn elsewhere the replies are seen only in its journal, so it stops a little later."""
        if call := unknown(lane.debugger.record.visit(at)):
            lane.in_doubt = call
            lane.debugger.order("pause")

    def _stands(self, lane: Lane) -> None:
        if lane.stop is None:
            self._desk.stopped(lane, stop_of(lane, self._desk.points))

    def _runs(self, lane: Lane) -> None:
        """It went on, by somebody else or by an answer. What has happened since is told by the events that follow: the turn may
        have ended by now."""
        if lane.stop is not None and not lane.looking_back:
            self._desk.running(lane)
            self._desk.post.event("continued", {"threadId": lane.id, "allThreadsContinued": False})

    def _waits(self, lane: Lane, event: Event) -> None:
        held = event.data["held"]
        fresh = [one for one in held if one["id"] not in lane.asked]
        lane.asked = frozenset(one["id"] for one in held)
        if not held:
            self._runs(lane)
        elif fresh and any(one["id"] == fresh[0]["id"] for one in lane.debugger.status.held):
            self._asks(lane, fresh[0])

    def _asks(self, lane: Lane, held: dict[str, Any]) -> None:
        stop = stop_of(lane, self._desk.points)
        self._desk.post.output(f"{lane.name}: {stop.description}", "important")
        if held["kind"] != "approval" or self._desk.points.stops_at("approval"):
            self._desk.stopped(lane, stop)

    def _ended(self, lane: Lane) -> None:
        overview = lane.debugger.record.overview()
        result = overview["result"] or {}
        if result.get("final_response"):
            self._desk.post.output(str(result["final_response"]), "stdout")
        if result.get("error"):
            self._desk.post.output(str(result["error"]), "stderr")
        self._desk.post.output(f"the turn has ended: {overview['outcome']}, {overview['exit']}")
        if self._desk.options.stop_at_end or lane.looking_back or lane.stop is not None:
            self._desk.stopped(lane, stop_of(lane, self._desk.points))
        else:
            self._desk.finish(lane)
