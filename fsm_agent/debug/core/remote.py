"""Debug a turn of another process: observe it through the journal, control it through rows of the table
``controls``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, assert_never

from fsm_agent.conversation.effects import AskApproval
from fsm_agent.debug.core import commands
from fsm_agent.debug.core.breakpoints import Arguments, Breakpoint, Breakpoints, objects, text
from fsm_agent.debug.core.commands import (
    Command,
    DebugEvent,
    EventKind,
    InterruptTurn,
    Listener,
    Status,
    SteerTurn,
    read_command,
)
from fsm_agent.debug.core.control import Controller
from fsm_agent.debug.core.pending_request import call_form
from fsm_agent.debug.core.record import Record
from fsm_agent.errors import ConfigError, StoreError
from fsm_agent.fsm.codec import dumps
from fsm_agent.fsm.pause_point import PausePoint, TurnKind
from fsm_agent.runtime.events import Stream
from fsm_agent.sessions.store import Store
from fsm_agent.sessions.store.database import Database
from fsm_agent.sessions.store.fence import Owners

# ----------------------------------------------------------------------------------------------------
# Executes the commands of a debugger in another process, at the pause point of a turn that runs here.


log = logging.getLogger(__name__)
ANSWERED = "said"
"""Command of the rows that answer; such a row counts as taken from the start."""
Announcement = Literal["paused", "running", "waiting", "log", "ended", "left"]
"""Events sent to the other process; it reads moves from the journal."""
AnswerKind = Literal["status", "refused"] | Announcement
"""Kinds of answer rows."""
LOOK_AFTER = 1.0
"""Seconds between checks that the debugger is alive: a turn must not wait for a dead one."""
KEPT = 3600.0
"""Seconds after which orders and answers are deleted."""


@dataclass(frozen=True, slots=True)
class AttachDebugger:
    """Attach the process ``owner`` to the turn with these breakpoints. ``pause``: pause the turn at once."""

    name: ClassVar[str] = "attach"
    owner: str
    pause: bool = False
    breakpoints: tuple[Breakpoint, ...] = ()

    @classmethod
    def of(cls, body: Arguments) -> AttachDebugger:
        """Parse the command from JSON. Raises ``ConfigError``."""
        breakpoints = tuple(Breakpoint.of(one) for one in objects(body, "breakpoints"))
        return cls(text(body, "owner"), bool(body.get("pause")), breakpoints)


@dataclass(frozen=True, slots=True)
class DetachDebugger:
    """Release the pause point."""

    name: ClassVar[str] = "detach"


class RemoteDebugServer:
    """Holds the pause point of one turn while a debugger in another process is attached."""

    def __init__(self, gate: PausePoint, database: Database, owners: Owners) -> None:
        self._gate, self._database = gate, database
        self._owners = owners
        self._controller: Controller | None = None
        self._debugger = ""
        self._looked = 0.0

    @property
    def attached(self) -> bool:
        """Return whether a debugger is attached; detach one whose process died."""
        if self._controller is not None and time.monotonic() - self._looked > LOOK_AFTER:
            self._looked = time.monotonic()
            if self._owners.alive(self._debugger) is None:
                self._detach()
        return self._controller is not None

    def obey(self, name: str, body: dict[str, Any]) -> None:
        """Execute a row of the table ``controls``; answer with the reason if it is not possible."""
        try:
            match _read(name, body):
                case AttachDebugger() as attach:
                    self._attach(attach)
                case DetachDebugger():
                    self._detach()
                case InterruptTurn(message) if self._controller is None:
                    self._gate.signals.interrupt(message)
                case SteerTurn(words) if self._controller is None:
                    self._gate.signals.steer(words)
                case command if self._controller is not None:
                    self._controller.order(command)
                    self._say("status", self._controller.status().to_dict())
        except ConfigError as error:
            self._say("refused", {"order": name, "why": str(error)})

    def _attach(self, wanted: AttachDebugger) -> None:
        if (
            self._controller is not None
            and self._debugger != wanted.owner
            and self._owners.alive(self._debugger) is not None
        ):
            raise ConfigError(
                "another debugger is attached to this turn already", self._gate.turn.turn_id, "one at a time"
            )
        self._detach()
        controller = Controller.at(self._gate, paused=wanted.pause)
        controller.listeners.subscribe(self._hear, DebugEvent)
        controller.breakpoints.replace(wanted.breakpoints)
        self._controller, self._debugger, self._looked = controller, wanted.owner, time.monotonic()
        before = time.time() - KEPT
        self._database.submit(lambda c: c.execute("DELETE FROM controls WHERE taken < ?", (before,)) and None)
        self._say("status", controller.status().to_dict())

    def _detach(self) -> None:
        if self._controller is not None:
            self._controller.go_away()
            self._controller = None

    def _hear(self, event: DebugEvent) -> None:
        match event.kind:
            case "moved" | "exchanged":
                return
            case kind if self._controller is not None:
                self._say(kind, dict(event.data) | {"status": self._controller.status().to_dict()})

    def _say(self, kind: AnswerKind, data: dict[str, Any]) -> None:
        values = (
            self._gate.turn.turn_id,
            ANSWERED,
            dumps({"kind": kind, "data": data}),
            time.time(),
            time.time(),
        )
        self._database.submit(
            lambda c: (
                c.execute(
                    "INSERT INTO controls (turn, command, body, at, taken) VALUES (?, ?, ?, ?, ?)", values
                )
                and None
            )
        )


def _read(name: str, body: dict[str, Any]) -> AttachDebugger | DetachDebugger | Command:
    match name:
        case "attach":
            return AttachDebugger.of(body)
        case "detach":
            return DetachDebugger()
    return read_command(name, body)


POLL = 0.02
"""Seconds between checks of the journal."""
WAITS = 0.5
"""Seconds after which an unanswered question is assumed to be for a person."""
ANSWERED_IN = 5.0
"""Seconds within which the other process must respond; otherwise it is too old or hangs."""


CALL = ("call_id", "name", "arguments")
"""Fields that identify a question."""


class RemoteDebugClient:
    """Observes the turn from the start; ``attach`` takes control of it in the other process. The thread ends
    with ``close`` or with the turn."""

    def __init__(self, store: Store, record: Record, kind: TurnKind) -> None:
        self.breakpoints = Breakpoints(kind.table, kind)
        self._store, self._record = store, record
        self._listeners = Stream()
        self._closed, self._attached = threading.Event(), threading.Event()
        info = record.info
        self._seq = info.seq
        self._said = self._newest()
        self._status = Status("running", info.seq, info.state, where="elsewhere")
        self._refused = ""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="fsm-agent-debugger")
        self._thread.start()

    def attach(self, pause: bool = False) -> None:
        """Take control of the turn. Raises ``ConfigError`` if another debugger has it or no process
        answers."""
        if self._attached.is_set():
            return
        attach = AttachDebugger(self._store.owners.me, pause, tuple(self.breakpoints))
        self._write(attach.name, asdict(attach))
        if not self._attached.wait(ANSWERED_IN):
            raise ConfigError(
                self._refused or "the process that runs this turn does not answer", self._record.turn_id
            )

    def order(self, command: commands.Command) -> None:
        status, attached = self.status(), self._attached.is_set()
        over = status.phase in ("ended", "idle")
        match command:
            case commands.ReplaceBreakpoints(all=wanted):
                self.breakpoints.replace(wanted)
                if over or not (attached or wanted):
                    return
            case commands.HoldRequests() if over:
                return
            case _ if over:
                ended = (
                    "the turn has ended" if status.phase == "ended" else "no process runs this turn any more"
                )
                raise ConfigError(ended, command.name)
            case commands.PauseTurn() if not attached:
                self.attach(pause=True)
                return
        self.attach()
        if isinstance(command, commands.AnswerRequest):
            late = [one for one in status.held if one.get("late") and one["id"] == command.id]
            command = replace(command, id=self._now_asked(late[0])) if late else command
        if isinstance(command, commands.Running):
            self._set(
                phase="running", reason="", text="", breakpoints=()
            )  # the old status does not predict the new one
        self._write(command.name, commands.body_of(command))

    def status(self) -> Status:
        with self._lock:
            return self._status

    def listen(self, listener: Listener) -> Callable[[], None]:
        return self._listeners.subscribe(listener, DebugEvent)

    def close(self) -> None:
        if self._attached.is_set():
            self._write(DetachDebugger.name, {})
        self._closed.set()

    # The observing thread

    def _watch(self) -> None:
        while not self._closed.is_set():
            try:
                if not self._look():
                    return
            except StoreError:
                log.warning("the journal of turn %s cannot be read", self._record.turn_id, exc_info=True)
                self._closed.wait(1.0)
            self._closed.wait(POLL)

    def _look(self) -> bool:
        info = self._record.info
        if info.seq > self._seq:
            for move in self._record.moves(self._seq + 1, info.seq):
                self._seq = move["seq"]
                self._set(seq=self._seq, state=move["dest"])
                self._tell("moved", move)
        self._hear()
        self._ask(info.seq)
        if info.ended is not None:
            self._forget()
            self._status = Status("ended", info.seq, info.state, where="elsewhere")
            self._tell("ended", {})
            return False
        if info.owner is None or self._store.owners.alive(info.owner) is None:
            if (now := self._record.info).ended is not None or now.seq > self._seq:
                return True  # it exited between the two checks
            self._status = Status("idle", info.seq, info.state, where="nowhere")
            self._tell("left", {})
            return False
        return True

    def _ask(self, seq: int) -> None:
        """Report questions for a person from the journal until the other process accepts control."""
        if self._attached.is_set():
            return
        with self._store.database.reading() as c:
            rows = c.execute(
                "SELECT request FROM effects WHERE turn = ? AND seq = ? AND kind = 'AskApproval' AND"
                " status = 'in_flight' AND at < ? ORDER BY ordinal, place",
                (self._record.turn_id, seq, time.time() - WAITS),
            ).fetchall()
        held = tuple(_late(text) for (text,) in rows)
        if held != self.status().held:
            self._set(held=held, phase="waiting" if held else "running")
            self._tell("waiting", {"held": list(held)})

    def _now_asked(self, late: Mapping[str, Any]) -> int:
        """Return the current number of a question that was asked before the other process accepted control.
        Raises ``ConfigError`` if it has been answered."""
        until = time.monotonic() + ANSWERED_IN
        while time.monotonic() < until:
            found = [
                one
                for one in self.status().held
                if not one.get("late") and all(one.get(name) == late[name] for name in CALL)
            ]
            if found:
                return int(found[0]["id"])
            self._closed.wait(POLL)
        raise ConfigError("the question has been answered, or is no longer asked", late["name"])

    def _forget(self) -> None:
        """Delete orders that arrived too late."""
        turn = self._record.turn_id
        self._store.database.submit(
            lambda c: c.execute("DELETE FROM controls WHERE turn = ? AND taken IS NULL", (turn,)) and None
        )

    def _hear(self) -> None:
        with self._store.database.reading() as c:
            rows = c.execute(
                "SELECT id, body FROM controls WHERE turn = ? AND command = ? AND id > ? ORDER BY id",
                (self._record.turn_id, ANSWERED, self._said),
            ).fetchall()
        for number, row in rows:
            self._said = number
            event = json.loads(row)
            self._on_message(event["kind"], event["data"])

    def _on_message(self, kind: AnswerKind, data: dict[str, Any]) -> None:
        if kind == "waiting":
            data["held"] = [read_held(one) for one in data["held"]]
        match kind:
            case "refused":
                self._refused = data["why"]
                log.warning("command %s was refused: %s", data["order"], data["why"])
            case "status":
                self._on_status(data)
            case "ended" | "left":  # the journal reports it
                self._on_status(data["status"])
            case "paused" | "running" | "waiting" | "log":
                self._on_status(data.pop("status"))
                self._tell(kind, data)
            case _:
                assert_never(kind)

    def _on_status(self, status: dict[str, Any]) -> None:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in status.items()}
        values["held"] = tuple(read_held(one) for one in status["held"])
        self._set(**{**values, "where": "elsewhere"})
        self._attached.set()

    def _set(self, **values: Any) -> None:
        with self._lock:
            self._status = replace(self._status, **values)

    def _tell(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        status = self.status()
        self._listeners.publish(
            DebugEvent(kind, {"turn": self._record.turn_id, "seq": status.seq, "state": status.state, **data})
        )

    def _newest(self) -> int:
        with self._store.database.reading() as c:
            return int(c.execute("SELECT COALESCE(MAX(id), 0) FROM controls").fetchone()[0])

    def _write(self, command: str, body: Mapping[str, Any]) -> None:
        values = (self._record.turn_id, command, dumps(dict(body)), time.time())
        self._store.database.write(
            lambda c: (
                c.execute("INSERT INTO controls (turn, command, body, at) VALUES (?, ?, ?, ?)", values)
                and None
            )
        )

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self._closed.set()


def _late(text: str) -> dict[str, Any]:
    """Return a question that the journal reports before this debugger can answer it. Its number is a hash of
    its contents, so an answer cannot match another question. What could be remembered is unknown here."""
    number = -int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
    about = {"id": number, "kind": "approval", "elsewhere": True, "allowable": True, "late": True}
    return read_held(json.loads(text) | about)


def read_held(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request that is pending elsewhere. For a call, build the question here from what will run: do
    not trust another process's text for the reader."""
    if held["kind"] not in ("approval", "tool"):
        return dict(held)
    texts = {name: held.get(name, "") for name in ("call_id", "name", "arguments", "pattern", "origin")}
    return {**held, **call_form(AskApproval(**texts))}
