"""What an editor is told of what happens to its turns."""

from __future__ import annotations

import logging
import time
from typing import Any, assert_never

from fsm_agent.conversation.result import words_of_model
from fsm_agent.debug.core.commands import PauseTurn
from fsm_agent.debug.core.events import DebugEvent
from fsm_agent.debug.core.remote_client import RemoteDebugClient
from fsm_agent.debug.dap.context import EditorContext
from fsm_agent.debug.dap.held import asked_for
from fsm_agent.debug.dap.threads import TurnThread, stop_of, unknown
from fsm_agent.errors import ConfigError, FsmAgentError

log = logging.getLogger(__name__)
LOOK_ROUND = 0.5
"""Seconds between two looks for turns that a turn has started."""
CHILDREN = (
    "SELECT t.id FROM turns t JOIN sessions s ON s.id = t.session JOIN turns p ON p.session = s.parent"
    " WHERE p.id = ? AND s.kind = 'child' AND t.began >= p.began ORDER BY t.began"
)


class EventTranslator:
    """Turns events of the debuggers into events of the protocol."""

    def __init__(self, context: EditorContext) -> None:
        self._context = context
        self._known: set[str] = set()
        self._looked = 0.0

    @property
    def busy(self) -> bool:
        """Does a turn run that may start others?"""
        return any(thread.stop is None for thread in self._context.threads)

    def tell(self, thread: TurnThread, event: DebugEvent) -> None:
        """Tell the editor of one event of one turn."""
        if thread.over:
            return
        match event.kind:
            case "moved":
                self._moved(thread, event)
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
                self._ended(thread)
            case "exchanged":
                pass  # there are many a move; an editor asks for them when the turn stands still
            case _:
                assert_never(event.kind)

    def look_round(self) -> None:
        """Make threads of turns that our turns have started; now and then, also while there is never a
        pause."""
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
                if turn not in self._known and self._context.threads.of_turn(turn) is None:
                    self._known.add(turn)
                    self._child(turn)

    def _pauses(self, thread: TurnThread) -> None:
        """Where a turn stands still because one that its state runs does, that one is looked at."""
        status = thread.debugger.status
        if status.phase != "paused":
            return
        if thread.stop is None:
            self._context.stopped(thread, stop_of(thread, self._context.breakpoints), focus=not status.inner)
        for turn in status.inner:
            if turn not in self._known and self._context.threads.of_turn(turn) is None:
                self._known.add(turn)
                self._child(turn)

    def _child(self, turn: str) -> None:
        focus = self._context.focus
        try:
            debugger = self._context.session.open(turn)
        except ConfigError as error:
            self._context.outbox.output(f"a turn was started that cannot be debugged: {error}", "important")
            return
        if debugger.status.phase == "ended":
            return
        self._context.open(debugger)
        self._context.focus = focus
        child = self._context.threads.of_turn(turn)
        if child is not None and child.stop is None and debugger.status.phase == "paused":
            self._context.stands(child)  # it paused before anything listened to it

    def _moved(self, thread: TurnThread, event: DebugEvent) -> None:
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
        """Of a turn elsewhere the replies are seen only in its journal, so it stops a little later."""
        if call := unknown(thread.debugger.record.visit(at)):
            thread.in_doubt = call
            thread.debugger.order(PauseTurn())

    def _runs(self, thread: TurnThread) -> None:
        """It went on, by somebody else or by an answer. What has happened since is told by the events that
        follow: the turn may have ended by now."""
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
            self._context.outbox.output(asked_for(held), "important")
        if fresh[0]["kind"] != "approval" or self._context.breakpoints.stops_at("approval"):
            self._context.stopped(thread, stop_of(thread, self._context.breakpoints))

    def _ended(self, thread: TurnThread) -> None:
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
